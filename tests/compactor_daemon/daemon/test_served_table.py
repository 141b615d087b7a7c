"""A table on storage as the loop of a daemon knows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.timeline.audit.ledgers import audit_path
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from tests.support.daemons import served_on

FIRST, SECOND, THIRD = (f"2026010100000000{n}" for n in range(3))


@pytest.mark.parametrize(("left", "is_done"), [("commit", True), ("compaction.requested", False), (None, True)])
def test_what_others_have_done_is_known_by_names(tmp_path: Path, left: str | None, is_done: bool) -> None:
    """A rollback by Hudi makes an instant pending again. An instant without a name is archived, or moved by an upgrade:
    a fresh timeline shows it."""
    table = create_table(LocalStorage(str(tmp_path)), NewTable(name="t", version=9, key_fields=("id",)))
    served = served_on(table)
    served.snapshot()
    for instant in (FIRST, SECOND):
        table.storage.put_if_absent(audit_path(instant), b"{}")
    if left is not None:
        done = "_20260101000000009" if left == "commit" else ""
        table.storage.put_if_absent(f".hoodie/timeline/{FIRST}{done}.{left}", b"")
    table.storage.put_if_absent(f".hoodie/timeline/{SECOND}.compaction.requested", b"")
    found = served.done_among(FIRST, [SECOND, THIRD])
    assert found == (frozenset({FIRST}) if is_done else frozenset())
    assert served.done_among(THIRD, [FIRST]) == frozenset()
