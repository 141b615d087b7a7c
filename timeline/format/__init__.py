"""The records and names of Hudi's table format: instants, file names, plans, commit metadata, hoodie.properties.

Each file parses and prints one kind. What differs by table version is in `layout.Layout`, and only there.

May import: arrow, avro, ground, storage.
"""
