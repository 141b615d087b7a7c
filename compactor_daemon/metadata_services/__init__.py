"""The services of the metadata table, when each is due, and their execution: compactions, cleans, archiving."""
