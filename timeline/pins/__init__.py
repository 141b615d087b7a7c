"""Pins: names under which readers hold what a cleaner must not remove.

The ways in are `pins` for readers and operators, and `held.earliest_to_retain` for a cleaner.

May import: format, ground, instants, storage, table.
"""
