"""Filters of reads: parsed from text, bound to a table's schema, evaluated on rows, and compared with bounds of files.

The ways in are `parse.parse_filter`, `bind.bound`, `evaluate.matching` and `possible.may_match`.

May import: ground.
"""
