"""HTTP as the service speaks it: `asgi` reads requests and sends answers, `answers` keeps these as bytes.

`bounded_http` is a connection, on which nothing is longer or later than it may be; `quick_http` answers at once what
was answered before.

May import: ground.
"""
