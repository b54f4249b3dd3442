"""The audit: ledgers of evidence on probability, state and performance, their gates, and the release manifest."""
