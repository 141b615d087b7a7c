"""Where the steps of a write run: on Arrow tables in this process, or in Spark stages over Arrow."""
