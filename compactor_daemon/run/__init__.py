"""Runs the pending compactions of one table: once, concurrently with an ingest job, or split into tasks."""
