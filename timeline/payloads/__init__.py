"""How a table merges, by its properties: merge modes, payload classes, values that mean "not given", delete markers.

The way in is `merge_settings.merge_settings`.

May import: ground.
"""
