"""Avro schemas, and Avro records to Arrow and back without a loop over rows.

The ways in are `schema` (schemas as Hudi writes them), `decode` and `encode` (runs of records), `framing` (where
records begin), `container` (files of one record).

May import: arrow, ground.
"""
