"""Undoes writes of dead writers, and completed ones for restores; repairs modification times of version 6."""
