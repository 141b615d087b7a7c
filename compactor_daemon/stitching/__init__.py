"""Stitches small base files into larger ones, as clusterings of Hudi.

The way in is `stitch`.

May import: attempt, execution; all of timeline.
"""
