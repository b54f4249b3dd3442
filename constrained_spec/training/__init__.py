"""Training of draft heads for one target: its own samples, cached final states, heads unrolled on themselves."""
