"""Runs the pending compactions of one table: once, in a thread beside an ingest job, or split into tasks."""
