"""Clustering: which small base files are joined into larger ones, and its execution, as Hudi clusters."""
