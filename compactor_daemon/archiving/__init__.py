"""Executes archiving: moves instants from the active timeline to the archive, under the table lock."""
