"""Measuring an engine: workloads, load, and what came of it. Figures are ratios within one run."""
