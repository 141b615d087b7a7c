"""What the service answers to people and their programs: status pages and metrics of tables."""
