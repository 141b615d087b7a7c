"""The schema of a table that is written: which columns it can have, and how it evolves with the rows."""
