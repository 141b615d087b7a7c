"""The commands of table services: `clean`, `archive`, `metadata`, `stitch`.

May import: archiving, cleaning, cli, ground, stitching; all of timeline.
"""
