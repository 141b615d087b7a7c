"""One session with ZooKeeper, and a ZooKeeper server for the daemons of one machine."""
