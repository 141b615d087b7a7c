"""HTTP as the service speaks it: `asgi` reads requests and sends answers, `answers` keeps these as bytes."""
