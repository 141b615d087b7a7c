"""Pins: readers name the earliest state that they still need, for a time; a cleaner must retain it."""
