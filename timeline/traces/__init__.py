"""What a pending write leaves in a table: markers, files, log blocks; how they are found and revoked.

May import: format, ground, log, storage, table.
"""
