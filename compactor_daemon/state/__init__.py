"""The state that compactors share through storage: failed tries of an instant, and the note in a heartbeat.

May import: all of timeline.
"""
