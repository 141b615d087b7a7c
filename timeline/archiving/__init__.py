"""Archiving: which instants may leave the active timeline, and the archive in Hudi's form."""
