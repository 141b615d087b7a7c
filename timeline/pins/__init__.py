"""Pins: readers name the earliest moment whose state they still need, for a time; a cleaner must keep it.

The ways in are `hold.hold` for readers, and `pin.live_pins` with `retain.earliest_to_retain` for cleaners.

May import: format, ground, instants, locks, look, storage, view.
"""
