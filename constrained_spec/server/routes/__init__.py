"""One file per group of endpoints. A route reads the body, makes a plan, and answers with what became of it."""
