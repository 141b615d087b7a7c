"""The table format of Apache Hudi MERGE_ON_READ tables, and all code that reads, plans and checks such tables.

The ground files are used by every room: the error tree, option fields, the fields of JSON records. Imports go
writer_hooks -> compactor_daemon -> timeline.

May import: no other room.
"""
