"""Erasure: keys leave a table, and each file that held them."""
