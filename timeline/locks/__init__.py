"""How processes coordinate: the table lock (on storage, file or ZooKeeper), heartbeats, the writer gate.

The way in is `table_lock.table_lock`.

May import: clock, format, ground, storage.
"""
