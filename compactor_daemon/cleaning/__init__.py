"""Executes cleans: removes the files that no reader needs any more."""
