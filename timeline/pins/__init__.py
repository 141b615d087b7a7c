"""Pins: readers name the earliest moment whose state they still need, for a time; a cleaner must keep it."""
