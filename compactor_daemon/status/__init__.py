"""What pends on a table, who works on it, and why the rest waits.

`snapshot` looks, `status` judges.

May import: claims, decisions, ground, records, state; all of timeline.
"""
