"""The daemon: chooses the next table and instant, executes it in threads, and serves metrics and health."""
