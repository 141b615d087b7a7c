"""What processes of the compactor know about tables; the service shows it where it runs beside or inside of them."""

from __future__ import annotations

from typing import Protocol

from ..table.table import Table
from ..terminal.plain import Row


class Crew(Protocol):
    """Who works on what. Both are asked in a thread; PhantombaseError: it cannot be known now."""

    def about(self, table: Table) -> Row:
        """One table, under the names of `compactor-daemon status --json`."""
        ...

    def fleet(self) -> Row:
        """`daemons`: who, host, pid, tables; `zookeeper`: connected, or None without it; `claims` of all tables."""
        ...
