"""The table format of Apache Hudi MERGE_ON_READ tables, and all code that reads, plans and checks such tables."""
