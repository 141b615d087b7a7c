"""The instants of a table: the timeline as a value, how it is loaded, and the clock that chooses new instants.

`timeline.Timeline` is the value, `timeline_loader` loads it, `instant_files` reads the content of an instant's file,
`table_clock` chooses times.

May import: avro, clock, format, ground, log, look, parquet, storage.
"""
