"""Finds the file group of each row: bucket index, key index, inserts; keys that are unique over all partitions."""
