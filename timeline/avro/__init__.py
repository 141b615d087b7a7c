"""Avro schemas, and Avro records to Arrow and back without a loop over rows."""
