"""One write from a DataFrame or Arrow table to its delta commit."""
