"""Archiving: which instants may leave the active timeline, and the archive in Hudi's form.

`choice.choose` decides (pure). The ways in to write are `archive.Archive`, `levels.compact_history` (version
8 on), and `removal.remove_instants`.

May import: avro, format, ground, instants, log, parquet, storage.
"""
