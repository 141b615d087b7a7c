"""Executes pending compactions: attempts, file slices on Spark, publishing, the daemon's commands."""
