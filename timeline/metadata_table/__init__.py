"""The metadata table: Hudi's own index of a table's files and columns, itself a Hudi table in `.hoodie/metadata`."""
