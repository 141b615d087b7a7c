"""Runs the pending compactions of one table, and their tasks on Spark, in this process or elsewhere."""
