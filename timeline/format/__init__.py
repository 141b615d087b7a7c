"""The records and names of Hudi's table format: instants, file names, plans, commit metadata, hoodie.properties.

Each file parses and prints one kind. All differences between table versions are in `layout.Layout`.

May import: arrow, avro, ground, payloads, storage.
"""
