"""The records and names of Hudi's table format: instants, file names, plans, commits and their ledgers, settings."""
