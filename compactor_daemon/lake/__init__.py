"""The tables of a lake: which there are, which this daemon serves, and how its slots are shared among them.

`listing` finds tables below a folder or in a catalog, `lanes` gives them their rules, `members` and `shares` split them
over the daemons of a fleet, `use` counts slots and bytes.

May import: zookeeper; all of timeline.
"""
