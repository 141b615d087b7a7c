"""Erasure: keys leave a table, and each file that held them; partitions past their time are deleted."""
