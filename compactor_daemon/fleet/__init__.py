"""A fleet of daemons: the tables of a catalog, the pools that share the slots, claims, and ZooKeeper."""
