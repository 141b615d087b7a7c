"""Orphan files: which files no instant, plan or other record of a table names, and their removal."""
