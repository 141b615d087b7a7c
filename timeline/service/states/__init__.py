"""States of a table in memory: what answers are made of."""
