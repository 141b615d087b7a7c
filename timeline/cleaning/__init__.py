"""Decides which files of a table no reader needs any more.

The way in is `choice`.

May import: format, ground, instants, pins, view.
"""
