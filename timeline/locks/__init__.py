"""How processes coordinate: the table lock (on storage, file or ZooKeeper), heartbeats, the writer gate."""
