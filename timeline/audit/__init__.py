"""Reports about a table: at a glance, and its compactions and clusterings verified again against their ledgers."""
