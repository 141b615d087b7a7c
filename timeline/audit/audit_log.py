"""The audit log: one entry for each execution of a compaction that completed. Entries are never changed or deleted.

    .hoodie/.phantombase/audit/<C>.json      the first execution
    .hoodie/.phantombase/audit/<C>-2.json    the second: the first was rolled back, and C was executed again
    ...

An entry is JSON: instant, attempt, completed (path of the commit), ledger (text, as in the commit).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from ..errors import MalformedError
from ..record_fields import Fields
from ..storage.contract import Storage
from .group_ledger import audit_path

_TODO = "The compaction's commit holds the same ledger until it is archived. Only this entry's proof is lost."


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An entry. `ledger`: None if it cannot be read; then `trouble` says why."""

    path: str
    ledger: str | None = None
    trouble: str = ""


def add_entry(storage: Storage, instant: str, attempt: int, completed: str, ledger: str) -> None:
    """Adds an entry after those of the instant, unless one of them has this ledger. Any process may repeat it."""
    body = {"instant": instant, "attempt": attempt, "completed": completed, "ledger": ledger}
    record = json.dumps(body, sort_keys=True).encode()
    for execution in count(1):  # ends at the first name that does not exist
        path = audit_path(instant, execution)
        if storage.put_if_absent(path, record) or _read(storage, path).ledger == ledger:
            return


def entries(storage: Storage, instant: str) -> tuple[AuditEntry, ...]:
    """The entries of an instant, first execution first."""
    return tuple(_entries(storage, instant))


def _entries(storage: Storage, instant: str) -> Iterator[AuditEntry]:
    for execution in count(1):
        path = audit_path(instant, execution)
        if storage.find(path) is None:
            return
        yield _read(storage, path)


def _read(storage: Storage, path: str) -> AuditEntry:
    try:
        fields = Fields.parse(storage.read(path), path, "unreadable entry of the audit log", _TODO)
        return AuditEntry(path=path, ledger=fields.text("ledger"))
    except MalformedError as error:
        return AuditEntry(path=path, trouble=str(error))
