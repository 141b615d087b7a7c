"""The commands of table services: `clean`, `archive`, `metadata`, `cluster`."""
