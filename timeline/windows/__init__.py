"""Windows of time on a table: its state at a moment, the writes between two moments, and how far back both go.

The ways in are `incremental.plan_increment` and `streamed.writes_after`; `state` is the table as of a moment.

May import: avro, filter, format, ground, instants, table, view.
"""
