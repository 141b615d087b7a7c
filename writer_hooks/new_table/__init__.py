"""Makes a table: its description, and the folders and hoodie.properties that Hudi would give it."""
