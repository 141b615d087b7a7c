"""The `timeline` command: shows a table, reads it and checks it."""
