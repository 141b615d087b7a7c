"""What processes of the compactor know about tables; the service shows it where it runs beside or inside of them."""

from __future__ import annotations

from typing import Protocol

from ..table.table import Table
from ..terminal.text_table import Row


class FleetInfo(Protocol):
    """Who works on what. Both are asked in a thread; PhantombaseError: it cannot be known now."""

    def about(self, table: Table, *, whole: bool = True) -> Row:
        """One table, under the names of `compactor-daemon status --json`. `whole`: also what only its page shows:
        `next_plan`, whether this daemon `requests` compactions, and the `unfinished` file groups of running ones.
        """
        ...

    def slo_s(self, path: str) -> float | None:
        """A compaction that is pending for longer makes the table late; None: never."""
        ...

    def fleet(self) -> Row:
        """`daemons`: who, host, pid, tables; `zookeeper`: connected, or None without it; `claims` of all tables.

        The first daemon is that of this process; others are known by their claims. `problem`: why these are unknown,
        if they are.
        """
        ...
