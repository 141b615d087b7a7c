"""Catalogs in which engines find tables: what Hudi's sync puts there, and how it is kept up to date."""
