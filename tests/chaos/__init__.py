"""A fleet of daemons among deaths, pauses, partitions and bad disks, with writers and readers who go on."""
