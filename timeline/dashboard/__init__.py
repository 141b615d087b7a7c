"""What the service answers to people and their programs: the state of tables, in one word each.

`people_app` speaks HTTP, `table_rows`, `groups` and `instants` find what it shows, `pages` makes HTML of that, `health`
finds the word and its reason, `crew` is what the processes of the compactor know.

May import: audit, clock, dashboard/actions, format, ground, instants, locks, merge, planning, report,
service, service/states, service/wire, table, terminal.
"""
