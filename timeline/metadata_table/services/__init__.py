"""The metadata table's own services, when each is due, and their execution: compactions, cleans and archiving."""
