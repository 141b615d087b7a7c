"""Checks the clock and time zone by which a process chooses instants, against the table's own timeline and storage.

`evidence` judges, `guard` refuses, `options` holds the settings.

May import: format, ground, storage.
"""
