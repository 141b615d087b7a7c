"""Records of the metadata table and the HFiles they lie in: bytes to entries and back.

May import: avro, format, ground, log.
"""
