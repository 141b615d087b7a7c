"""The records and names of Hudi's table format: instants, file names, plans, commit metadata, hoodie.properties."""
