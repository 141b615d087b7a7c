"""What the service answers to people and their programs: the state of tables, in one word each.

`people_app` speaks HTTP, `pages` makes HTML, `health` finds the word and its reason.

May import: ground, report, service, table, terminal.
"""
