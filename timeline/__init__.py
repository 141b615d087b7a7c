"""The table format of Apache Hudi MERGE_ON_READ tables and everything that reads it.

Knows nothing of compactor daemons and writers: imports go writer_hooks -> compactor_daemon -> timeline.
"""
