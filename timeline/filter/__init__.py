"""Filters of reads: parsed from text, bound to a schema, evaluated on rows, compared with bounds of files."""
