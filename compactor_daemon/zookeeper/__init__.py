"""One session with ZooKeeper, and a ZooKeeper server for the daemons of one machine.

The way in is `session`.

May import: ground; all of timeline.
"""
