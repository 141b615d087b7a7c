"""Cleaning: which files no reader needs, and their removal."""
