"""The compactions and clusterings of a table, verified again against their ledgers, and the times of its files."""
