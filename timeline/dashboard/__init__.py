"""One report of a table as values, made once from a snapshot; text, JSON, pages and metrics render it."""
