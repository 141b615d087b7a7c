"""The timeline service inside a daemon: its pages also show who works on what.

`crew` answers the pages, `unfinished` names what a compaction has before it, `service` starts it.

May import: claims, daemon, records, status, zookeeper; all of timeline.
"""
