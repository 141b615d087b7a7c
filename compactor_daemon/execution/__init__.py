"""Runs the tasks of an attempt, on Spark or in this process: each merges one file slice into one staged file."""
