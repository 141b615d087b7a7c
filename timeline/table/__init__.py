"""A table on storage: the way in to its configuration, instants, view and schema, and what is in progress on it."""
