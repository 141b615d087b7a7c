"""One served table: its newest states, and how they are replaced."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath

from ..errors import PhantombaseError
from ..storage.access.storage_options import Given
from ..table.table import Table
from .states.loading import load_state
from .states.synchronisation import Known, may_stay_behind, refusal
from .states.table_state import TableState

_STATES_KEPT = 4
_serials = count(1)


class BehindError(Exception):
    """The client's timeline is not the table's; the text is for the client."""


@dataclass(frozen=True, slots=True)
class Held:
    """A state under a number that no other state of this process has. `loaded_s`: when its load began, monotonic."""

    serial: int
    state: TableState
    loaded_s: float


class ServedTable:
    """A table by its path. It is opened at the first load, and again at each one: it may have been upgraded."""

    def __init__(self, path: str, storage_options: Given = None) -> None:
        self.path = path
        self.name = PurePosixPath(path.rstrip("/")).name
        self.error: PhantombaseError | None = None
        self.storage_options = storage_options
        self._table: Table | None = None
        self._held: deque[Held] = deque(maxlen=_STATES_KEPT)
        self._flight: asyncio.Task[Held] | None = None
        self._whole = False

    @property
    def newest(self) -> Held | None:
        """The state loaded last; None before the first."""
        return self._held[-1] if self._held else None

    @property
    def table(self) -> Table:
        """The table; only after the first load."""
        assert self._table is not None
        return self._table

    async def current(self) -> Held:
        """The newest state, loaded if there is none. PhantombaseError: the table cannot be read."""
        return self.newest or await self.load()

    async def agreed(self, client: Known) -> Held:
        """The state from which a client is answered.

        BehindError: the client's timeline is none of the table's. PhantombaseError: the table cannot be read.
        """
        found = self._find(client) if self._held else None
        if found is None:
            await self.load()
            found = self._find(client)
        if found is None:
            raise BehindError(refusal(self._held[-1].state.timeline, client))
        return found

    def _find(self, client: Known) -> Held | None:
        newest = self._held[-1]
        for held in reversed(self._held):
            timeline = held.state.timeline
            if held.state.agrees(client):
                return held if held is newest or may_stay_behind(timeline, newest.state.timeline) else None
        return None

    async def load(self, *, whole: bool = False) -> Held:
        """A state whose load began after this call; calls that come in during a load share the next one.

        `whole`: everything is read again.
        """
        self._whole = self._whole or whole
        running = self._flight
        if running is not None and not running.done():
            await asyncio.wait([running])
        if self._flight is running:
            self._flight = asyncio.create_task(self._load())
        assert self._flight is not None
        return await asyncio.shield(self._flight)

    async def _load(self) -> Held:
        began, whole, self._whole = time.monotonic(), self._whole, False
        before = self._held[-1].state if self._held and not whole else None
        try:
            table, state = await asyncio.to_thread(self._read, before)
        except PhantombaseError as error:
            self.error = error
            raise
        self._table, self.error = table, None
        held = Held(next(_serials), state, began)
        self._held.append(held)
        return held

    def _read(self, before: TableState | None) -> tuple[Table, TableState]:
        table = self._table.reload() if self._table else Table.open(self.path, self.storage_options)
        return table, load_state(table, before)
