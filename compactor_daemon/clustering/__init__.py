"""Clusters small base files into larger ones, as clusterings of Hudi."""
