"""What a person holds or ends: pauses of a table, see `timeline.locks.pause`, and the work on one instant."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import UTC, datetime

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.pause import COMPACTION, Pause, pause_files, put_pause, readable_pauses, user_name
from phantombase.timeline.option import check_text
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table

from ..attempt.compact_or_resume import pending_instants
from ..attempt.outcome import CancelledWork, cancel_work
from .options import Service

PAUSABLE = (COMPACTION, *(service.value for service in Service))


def pause_table(
    storage: Storage, reason: str, *, until: datetime | None = None, services: Sequence[str] = (), dry_run: bool = False
) -> Pause:
    """Puts a pause of this user. `until`: without a zone UTC; None: until `resume_table`. `services`: only these of
    `PAUSABLE`. UsageError: no reason, an end that is over, an unknown service."""
    check_text("the reason", reason)
    if not reason.strip():
        raise UsageError("a pause needs a reason", path=storage.base_path, found="none")
    services = (services,) if isinstance(services, str) else tuple(map(str, services or ()))
    if unknown := [name for name in services if name not in PAUSABLE]:
        raise UsageError("nothing that can be paused", expected=", ".join(PAUSABLE), found=", ".join(unknown))
    pause = Pause(
        who=_who(),
        reason=" ".join(reason.split()),
        since_ms=clock_ms(),
        until_ms=None if until is None else _ms(until),
        services=tuple(name for name in PAUSABLE if name in services),
    )
    if pause.is_over(pause.since_ms):
        raise UsageError("the end of the pause is over already", path=storage.base_path, found=str(until))
    if not dry_run:
        put_pause(storage, pause)
    return pause


def resume_table(storage: Storage, *, dry_run: bool = False) -> tuple[str, ...]:
    """Removes all pauses, also one that cannot be read; what each said, for people."""
    files = pause_files(storage)
    words = tuple(one.words if isinstance(one, Pause) else str(one) for one in readable_pauses(storage))
    if not dry_run:
        storage.delete_all(files)
    return words


def cancel_instant(table: Table, instant: str, reason: str = "", *, dry_run: bool = False) -> CancelledWork:
    """Ends the work on a pending compaction or clustering, see `cancel_work`. UsageError: it is not pending."""
    check_text("the reason", reason)
    pending_instants(table, instant, clusterings=True)
    words = " ".join(reason.split())
    return cancel_work(table.storage, instant, f"by {_who()}{words and f': {words}'}", dry_run=dry_run)


def _who() -> str:
    return f"{user_name()}@{socket.gethostname()}"


def _ms(until: datetime) -> int:
    return round((until if until.tzinfo is not None else until.replace(tzinfo=UTC)).timestamp() * 1000)
