"""The table format of Apache Hudi MERGE_ON_READ tables, and all that reads, plans and checks such tables.

The ground files are what every room uses: the error tree, option fields, the fields of our own records. Imports go
writer_hooks -> compactor_daemon -> timeline.

May import: no other room.
"""
