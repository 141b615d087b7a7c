"""The files of a write: which rows go to which file, and how files are staged."""
