"""One report of a table: its facts as values, made once from a snapshot; text, JSON, pages and metrics render it."""
