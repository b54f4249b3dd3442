"""The pipeline: pure functions of (logits, positions)."""

if __name__ != "constrained_spec.processors":
    raise ImportError("import constrained_spec.processors, not processors")
