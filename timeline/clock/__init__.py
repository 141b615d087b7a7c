"""Checks the clock and time zone by which a process chooses instants, against the table's own timeline and storage."""
