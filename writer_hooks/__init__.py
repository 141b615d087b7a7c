"""Hooks for ingest jobs. Writing delta commits from Spark is not built yet: see README, "What is not here yet"."""
