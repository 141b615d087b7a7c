"""The timeline service: answers about tables over HTTP, for Hudi's remote file-system view.

`run.serve` starts it. `table_state` is one immutable state of a table; `synchronisation`, `routes` and `view_json`
are pure functions from a state to an answer; `served_table` keeps the newest state of one table; `hudi_app` and
`marker_app` speak HTTP.

May import: format, ground, instants, storage, storage/access, table, traces, view.
"""
