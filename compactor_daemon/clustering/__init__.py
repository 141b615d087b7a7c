"""Clustering: which small base files are joined into larger ones, how, and what becomes of plans of dead processes."""
