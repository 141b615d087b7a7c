"""Decides which files of a table no reader needs."""
