"""One served table: its newest states, and how they are replaced."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath

from ..errors import PhantombaseError
from ..instants.clock_check import ClockOptions
from ..storage.storage_options import Given
from ..table.left_to_hudi import refuse_left_to_hudi
from ..table.table import Table
from .states.loading import load_state
from .states.synchronisation import ClientState, may_stay_behind, refusal
from .states.table_state import ServedState
from .wire.asgi import BehindError

_STATES_KEPT = 4
_SWEEP_S = 0.5
CLOCK = ClockOptions()
_serials = count(1)


@dataclass(frozen=True, slots=True)
class Held:
    """A state under a number that no other state of this process has. `loaded_s`: when its load began, monotonic."""

    serial: int
    state: ServedState
    loaded_s: float


class ServedTable:
    """A table by its path. It is opened at the first load, and again at each one: it may have been upgraded."""

    def __init__(self, path: str, storage_options: Given = None, clock: ClockOptions = CLOCK) -> None:
        self.path, self._clock = path, clock
        self.name = PurePosixPath(path.rstrip("/")).name
        self.error: PhantombaseError | None = None
        self.storage_options = storage_options
        self._table: Table | None = None
        self._held: deque[Held] = deque(maxlen=_STATES_KEPT)
        self._flight: asyncio.Task[Held] | None = None
        self._whole = False
        self.used_s = 0.0
        self.gone = False  # no longer served
        self.loads, self.whole_loads, self.load_s = 0, 0, 0.0
        self._swept_s = -_SWEEP_S
        self.on_load: Callable[[ServedTable], None] = lambda table: None

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
        self.used_s = time.monotonic()
        return self.newest or await self.load()

    async def agreed(self, client: ClientState) -> Held:
        """The state from which a client is answered.

        BehindError: the client's timeline is none of the table's. PhantombaseError: the table cannot be read.
        """
        self.used_s = time.monotonic()
        known = tuple(self._held)
        found = _find(known, client)
        if found is None:
            newest = await self.load()
            known = tuple(self._held) or (newest,)  # another table may have needed the memory
            found = _find(known, client)
        if found is None:
            raise BehindError(refusal(known[-1].state.timeline, client))
        return found

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
        self.loads, self.load_s = self.loads + 1, self.load_s + time.monotonic() - began
        self.whole_loads += before is None
        held = Held(next(_serials), state, began)
        if before is not None and before.timeline.instants == state.timeline.instants:
            self._held.pop()  # the older ones are those that clients may still know
        self._held.append(held)
        self.on_load(self)
        return held

    @property
    def bytes(self) -> int:
        """About what its states take in memory."""
        return self._held[-1].state.bytes if self._held else 0

    def forget(self) -> None:
        """Lets its states go; the next request loads the table whole."""
        self._held.clear()

    def opened(self) -> Table:
        """The table, as it is on storage now; to be called in a thread. PhantombaseError: it cannot be opened."""
        table = Table.open(self.path, self.storage_options).with_clock(self._clock)
        refuse_left_to_hudi(table, "serving views of")
        return table

    def _read(self, before: ServedState | None) -> tuple[Table, ServedState]:
        table = self._table.reload() if self._table else self.opened()
        sweep = time.monotonic() - self._swept_s >= _SWEEP_S
        state = load_state(table, before, sweep=sweep)
        if sweep:
            self._swept_s = time.monotonic()
        return table, state


def _find(known: Sequence[Held], client: ClientState) -> Held | None:
    """The newest state from which a client may be answered."""
    for held in reversed(known):
        if held.state.agrees(client):
            newest = known[-1].state.timeline
            return held if held is known[-1] or may_stay_behind(held.state.timeline, newest) else None
    return None
