"""Each error of a call names its table and no class of the code: of a table as it is, and with a file that is gone,
torn or junk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import phantombase as pb
from phantombase import CleanOptions, PartitionTtlOptions, PhantombaseError
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep

_NO_INSTANT = "20260101000000000"
_NAMES_CODE = re.compile(r"\b[A-Z]\w*[a-z](Error|Exception)\b|Traceback|::|0x[0-9a-f]{6,}|\n")
_ALONE: dict[str, Any] = {"sole_writer": True}
CALLS: dict[str, Callable[[str], object]] = {
    **{one.__name__: one for one in (pb.audit, pb.check, pb.history, pb.replay, pb.resume, pb.savepoints)},
    **{one.__name__: one for one in (pb.orphans, pb.plan_compaction, pb.status, pb.validate)},
    **{name: partial(getattr(pb, name), **_ALONE) for name in ["archive", "metadata", "savepoint", "schedule"]},
    **{
        name: partial(getattr(pb, name), instant=_NO_INSTANT, **_ALONE)
        for name in ["delete_savepoint", "replan", "rollback", "unschedule"]
    },
    "build_metadata": partial(pb.build_metadata, dry_run=True, **_ALONE),
    "cancel": partial(pb.cancel, instant=_NO_INSTANT),
    "changes": lambda at: pb.read(at, query="changes", begin="earliest").to_arrow(),
    "clean": partial(pb.clean, options=CleanOptions(retain=1), **_ALONE),
    "cluster": partial(pb.cluster, dry_run=True, **_ALONE),
    "compact": lambda at: pb.compact(at),
    "compact no instant": lambda at: pb.compact(at, _NO_INSTANT),
    "erase": lambda at: pb.erase(at, ["a"], dry_run=True),
    "incremental": lambda at: pb.read(at, query="incremental", begin="earliest").to_arrow(),
    "no column": lambda at: pb.read(at, ["nope"]).to_arrow(),
    "no column in the filter": lambda at: pb.read(at, filter="nope = 1").to_arrow(),
    "no partition": lambda at: pb.read(at, partition="nope").to_arrow(),
    "partition_ttl": partial(pb.partition_ttl, options=PartitionTtlOptions(days_retain=1), dry_run=True, **_ALONE),
    "read": lambda at: pb.read(at).to_arrow(),
    "restore": partial(pb.restore, to=_NO_INSTANT, **_ALONE),
    "too early": lambda at: pb.read(at, as_of=_NO_INSTANT).to_arrow(),
}


def damaged(table: Path, work: Path) -> Iterator[tuple[str, Path]]:
    """The table, and copies with one damaged file of each kind."""
    yield "as it is", table
    kinds = {re.sub("[0-9a-f-]{8,}", "", str(one.relative_to(table))): one for one in sorted(table.rglob("*"))}
    for one in (one for one in kinds.values() if one.is_file() and one.suffix != ".crc"):
        data, name = one.read_bytes(), one.relative_to(table)
        for how, left in (("gone", None), ("torn", data[: len(data) // 2]), ("junk", b"\0junk" * 20)):
            shutil.rmtree(work, ignore_errors=True)
            file = shutil.copytree(table, work) / name
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            file.unlink() if left is None else file.write_bytes(left)
            yield f"{name} {how}", work


@pytest.mark.parametrize(
    "name",
    [deep(f"v{version}_{of}") for version in (6, 9) for of in ("archived", "rolled_back")]
    + [deep(f"v9_{of}") for of in ("clustered", "log_compacted", "with_metadata_table")],
)
def test_each_error_of_a_damaged_table_names_it(name: str, tmp_path: Path) -> None:
    assert _unnamed(damaged(unzip_golden(name, tmp_path), tmp_path / "work")) == {}


def _unnamed(cases: Iterator[tuple[str, Path]]) -> dict[tuple[str, str], str]:
    left = {}
    for damage, path in cases:
        for name, call in CALLS.items():
            try:
                call(str(path))
            except PhantombaseError as error:
                if str(path) not in str(error) or _NAMES_CODE.search(str(error)):
                    left[damage, name] = str(error)
    return left
