"""The timeline service inside a daemon: its pages also show who works on what.

`crew` answers the pages, `service` starts it.

May import: claims, daemon, status, zookeeper; all of timeline.
"""
