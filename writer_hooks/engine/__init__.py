"""Where the steps of a write run: on Arrow tables in this process, or in Spark stages over Arrow.

The way in is `engine`.

May import: schema; all of timeline; all of compactor_daemon.
"""
