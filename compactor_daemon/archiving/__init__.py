"""Archiving: which instants leave the active timeline, and the archive in the form of Hudi."""
