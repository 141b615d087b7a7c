"""A delta commit from its instant to its completed file, and the work after it: plans, compaction, clean-up.

The way in is `transaction`.

May import: engine, files, ground; all of timeline; all of compactor_daemon.
"""
