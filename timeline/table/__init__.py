"""A table on storage: the way in to its configuration, instants, view and schema; what is in progress; its history."""
