"""What happens to a daemon, as values: `control` applies them, the loop acts on them, `record` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..fleet.pools import Pool
from ..services.serve import ServiceDone
from .dispatch import OfInstant, OfTable, Stop
from .served_table import Served
from .table_state import SeenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When an event is processed or a decision made: in ms of the loop's clock, and in ms since the epoch."""

    now_ms: int
    epoch_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A table that a daemon serves, and its pool."""

    served: Served
    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken(OfTable):
    """A snapshot of the table. `available`: its claims can be taken; the loop knows it when it processes the event."""

    seen: SeenTable
    available: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepFailed(OfTable):
    """A snapshot, request or sweep of the table failed."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequested(OfTable):
    """A request of a plan came to its end; `instant` None: nothing is due, for the reason `why`."""

    instant: str | None
    why: str


class Swept(OfTable):
    """What other compactors left at completed instants of the table is finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesRan(OfTable):
    """The services of the table ran; `error`: why they could not begin."""

    done: tuple[ServiceDone, ...] = ()
    error: str | None = None


class WorkBegan(OfInstant):
    """The instant is claimed."""


class WorkSuspended(OfInstant):
    """The instant waits for writes, and releases its slot."""


class SlotWanted(OfInstant):
    """The writes that the instant waited for have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEnded(OfInstant):
    """How work on an instant ended, see `Ended`. `counts`: the error is a failure of the instant; `is_fatal`: the
    executor has ended."""

    bytes_read: int | None = None
    done_elsewhere: frozenset[str] = frozenset()
    claimed: bool = False
    unknown: bool = False
    error: str | None = None
    counts: bool = False
    is_fatal: bool = False


class DoorbellRang(OfTable):
    """A plan was requested for the table."""


class ClaimsChanged(OfTable):
    """A process took or released a claim on the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChanged:
    """The connection to ZooKeeper was made or lost. `available`: by table, whether its claims can be taken; the loop
    knows it when it processes the event."""

    available: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesAssigned:
    """The daemon serves these tables and no others. `members`: the daemons that share the quotas of bytes."""

    tables: Mapping[str, Assigned]
    members: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The daemon is to end."""

    how: Stop


Event: TypeAlias = (
    SnapshotTaken
    | UpkeepFailed
    | PlanRequested
    | Swept
    | ServicesRan
    | WorkBegan
    | WorkSuspended
    | SlotWanted
    | WorkEnded
    | DoorbellRang
    | ClaimsChanged
    | SessionChanged
    | TablesAssigned
    | Stopped
)
