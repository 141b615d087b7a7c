"""Stitches small base files into larger ones, as clusterings of Hudi.

The way in is `stitch`; `rollback` takes a completed one back.

May import: attempt, execution, restoring; all of timeline.
"""
