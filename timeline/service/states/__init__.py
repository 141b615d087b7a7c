"""States of a table in memory: what answers are made of.

`table_state` is one immutable state; `loading` reads it from storage, and the next one from it; `recorded` and
`touched` (pure) say what a new instant changes, `synchronisation` (pure) whether a client may be answered from a state.

May import: format, ground, instants, look, storage, table, view.
"""
