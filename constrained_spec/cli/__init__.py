"""The command line: constrained-spec."""
