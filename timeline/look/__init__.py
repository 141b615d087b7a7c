"""A storage as it stands at one moment: what a step asks of it is asked once.

The way in is `look.Look`; a table makes one with `Table.still`.

May import: ground, storage.
"""
