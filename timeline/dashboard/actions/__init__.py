"""What people may have done about a table from its page: one command of `compactor-daemon`, in a process of its own.

`orders` says which there are, `runner` runs them, `action_app` takes them over HTTP.

May import: clock, ground, service, service/wire, storage/access, terminal.
"""
