"""Constraint languages, compiled to matchers over token ids."""

if __name__ != "constrained_spec.grammars":
    raise ImportError("import constrained_spec.grammars, not grammars")
