"""Executes cleans: deletes the files that no reader needs."""
