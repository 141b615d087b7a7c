"""The state of a table's pending compactions: which process works on each, and why the others wait.

`snapshot` reads the table, `status` derives the state; `outlook` is what lies ahead. `lake_rows`: many tables at a
glance.

May import: claims, cleaning, decisions, ground, lake, records, services, state; all of timeline.
"""
