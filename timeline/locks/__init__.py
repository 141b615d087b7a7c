"""How processes keep out of each other's way: the table lock (file or ZooKeeper), heartbeats, the writer gate.

The way in is `table_lock.table_lock`.

May import: clock, ground, storage.
"""
