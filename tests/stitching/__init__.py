"""Stitching: which small files become one, and that no row is lost or doubled by it."""
