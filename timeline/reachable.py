"""Whether any of several servers takes a connection, and if not, why: unknown host, refused, no answer."""

from __future__ import annotations

import socket
from collections.abc import Sequence

_WAIT_S = 3.0


def why_unreachable(servers: Sequence[str], port: int) -> str | None:
    """Why none of the servers `HOST[:PORT]` takes a connection; None: one does. `port`: where none is named."""
    problems = []
    for server in servers:
        problem = _problem(server, port)
        if problem is None:
            return None
        problems.append(f"{server}: {problem}")
    return "; ".join(problems)


def _problem(server: str, port: int) -> str | None:
    name, _, named = server.rpartition(":")
    host, at = (name.strip("[]"), named) if name else (server, str(port))
    try:
        with socket.create_connection((host, int(at)), _WAIT_S):
            return None
    except socket.gaierror:
        return "unknown host"
    except ConnectionRefusedError:
        return "connection refused, no process listens there"
    except TimeoutError:
        return f"no answer within {_WAIT_S:g} s"
    except (OSError, ValueError, OverflowError) as error:
        return str(error)
