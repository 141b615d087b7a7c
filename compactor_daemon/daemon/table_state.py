"""What a daemon knows of a table, and how news change it (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..state.failures import Readiness, Ready, Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A pending instant as last looked at. `log_bytes` is known where the order asks for it.

    `requested_ms`: since the epoch, None for made-up instant times.
    """

    instant: str
    requested_ms: int | None = None
    readiness: Readiness = field(default_factory=Ready)
    log_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """What the daemon knows of a table. Times in ms of the loop's clock; `busy`: a look, request or sweep is under way.

    `claimed`: by others, as last heard. `running`: ours. `aside`: those of them that wait for writes, and hold no slot.
    `eager`: those of them that have waited, and ask for a slot. `postponed`: not before that time, for reasons of
    others. `served`: the number of the last take on this table, over all tables.
    """

    pending: tuple[Pending, ...] = ()
    claimed: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    aside: frozenset[str] = frozenset()
    eager: frozenset[str] = frozenset()
    postponed: Mapping[str, int] = field(default_factory=dict)
    available: bool = True
    due: bool = False
    busy: bool = False
    looked: bool = False
    look_at: int = 0
    sweep_at: int = 0
    served: int = 0

    def startable(self, now_ms: int) -> Iterator[Pending]:
        """The pending instants that may be claimed now, one by one: of thousands, the first few are asked for."""
        return (
            p
            for p in self.pending
            if p.instant not in self.claimed
            and p.instant not in self.running
            and self.postponed.get(p.instant, 0) <= now_ms
            and (isinstance(p.readiness, Ready) or (isinstance(p.readiness, Waits) and p.readiness.until_ms <= now_ms))
        )

    def is_startable(self, now_ms: int) -> bool:
        """Whether any may be claimed now."""
        return next(self.startable(now_ms), None) is not None

    def after_look(
        self, pending: tuple[Pending, ...], claimed: frozenset[str], now_ms: int, poll_ms: int
    ) -> TableState:
        """What was found is all that counts from now on."""
        there = {p.instant for p in pending}
        return replace(
            self,
            pending=pending,
            claimed=claimed - self.running,
            postponed={i: t for i, t in self.postponed.items() if i in there and t > now_ms},
            busy=False,
            looked=True,
            look_at=now_ms + poll_ms,
        )

    def after_trouble(self, later_ms: int) -> TableState:
        """Nothing is known of the table: nothing is begun there before it was looked at again."""
        return replace(
            self, pending=(), busy=False, looked=True, look_at=later_ms, sweep_at=max(later_ms, self.sweep_at)
        )

    def look_by(self, moment_ms: int) -> TableState:
        """It is looked at then at the latest."""
        return replace(self, look_at=min(self.look_at, moment_ms))

    def begin(self, instant: str, served: int) -> TableState:
        """An instant is at work here."""
        return replace(self, running=self.running | {instant}, served=served)

    @property
    def slots(self) -> int:
        """How many of those at work hold a slot."""
        return len(self.running) - len(self.aside)

    def put_aside(self, instant: str) -> TableState:
        """It waits for writes, and gives its slot back."""
        return replace(self, aside=self.aside | {instant})

    def wants_on(self, instant: str) -> TableState:
        """What it waited for has ended."""
        return replace(self, eager=self.eager | {instant})

    def resume(self, instant: str) -> TableState:
        """It has a slot again."""
        return replace(self, aside=self.aside - {instant}, eager=self.eager - {instant})

    def end(self, instant: str) -> TableState:
        """It is at work no more."""
        return replace(self.resume(instant), running=self.running - {instant})

    def without(self, instants: frozenset[str]) -> TableState:
        """They are not pending any more."""
        return replace(self, pending=tuple(p for p in self.pending if p.instant not in instants))

    def claimed_by_others(self, instant: str) -> TableState:
        """Somebody else holds it."""
        return replace(self, claimed=self.claimed | {instant})

    def postpone(self, instant: str, until_ms: int) -> TableState:
        """It is not tried before then."""
        return replace(self, postponed={**self.postponed, instant: until_ms})

    def requested_ms(self, instant: str) -> int | None:
        """When it was requested, since the epoch."""
        return next((p.requested_ms for p in self.pending if p.instant == instant), None)
