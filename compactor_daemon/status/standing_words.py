"""The words of `status` for a compaction's decision, and for the reason why an undecided one waits (pure)."""

from __future__ import annotations

from phantombase.timeline.errors import PhantombaseError

from ..decisions.standing import Ruling, Standing

FALLEN = "fallen"
_STANDS = "its result stands: the next run publishes it"


def of_decision(ruling: Ruling | PhantombaseError, *, is_worked_on: bool) -> tuple[str, str | None]:
    """State and reason of a decided instant."""
    if isinstance(ruling, PhantombaseError):
        return "unknown", "whether its decision stands is unknown"
    if ruling.standing is Standing.STANDS:
        return "decided", None if is_worked_on else _STANDS
    if ruling.standing is Standing.FALLEN:
        return FALLEN, f"{ruling.why}: the next run takes it back"
    if ruling.standing is Standing.PAST:
        return "decided", f"{ruling.why}: nothing is left to do"
    return "decided", _waits(ruling)


def of_parked_decision(reason: str, ruling: Ruling | PhantombaseError) -> str:
    """Why a decided instant is parked, or not tried yet."""
    if not isinstance(ruling, PhantombaseError) and ruling.standing is Standing.STANDS:
        return f"{reason}; it is decided, and its result stands"
    _, why = of_decision(ruling, is_worked_on=False)
    return f"{reason}; it is decided: {why}"


def of_undecided(ruling: Ruling | PhantombaseError) -> tuple[str, str] | None:
    """State and reason of an instant that no process works on, if it could not be decided now."""
    if isinstance(ruling, PhantombaseError):
        return "unknown", "whether it may be decided is unknown"
    return None if ruling.standing is Standing.STANDS else ("waiting", _waits(ruling))


def _waits(ruling: Ruling) -> str:
    return f"waits: {ruling.why}" + (f". {ruling.todo}" if ruling.todo else "")
