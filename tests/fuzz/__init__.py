"""Mutated tables: whatever the bytes, an error of the project's own tree or a successful read, in bounded memory."""
