"""What a pending instant holds back (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ..terminal.plain import Row, plural

_PLANNED = {
    "compaction": "other plans for its file groups",
    "logcompaction": "other plans for its file groups",
    "clustering": "compactions and writes of its file groups",
}
_NO_WRITES = frozenset({"clean", "rollback", "restore", "savepoint", "indexing"})


def held_back(pending: Sequence[Row], crew: Row | None) -> dict[str, str]:
    """By requested time, in words. `pending`: oldest first. `crew`: with the writes that compactions wait for."""
    waiting = {one["instant"]: one["holds"] for one in (crew or {}).get("writes", ())}
    writes = [row["instant"] for row in pending if row["action"] not in _NO_WRITES]
    found = {}
    for row in pending:
        time, kind, words = row["instant"], row.get("kind", row["action"]), []
        if row is pending[0]:
            words.append("archiving of what came later")
        if time in writes[:1]:
            words.append("cleaning of what came later")
        if kind in _PLANNED:
            words.append(_PLANNED[kind])
        if held := waiting.get(time):
            words.append(f"the end of {plural(len(held), 'compaction')}: {', '.join(held)}")
        found[time] = "; ".join(words)
    return found
