"""The timeline service: answers about tables over HTTP, for Hudi's remote file-system view.

`run.serve` starts it. `routes` and `view_json` are pure functions from a state of a table (`states`) to an answer;
`served_table` keeps the newest states of one table; `hudi_app` and `marker_app` speak HTTP.

May import: clock, format, ground, instants, service/states, service/wire, storage, storage/access, table, traces, view.
"""
