"""A reader beside table services: whichever of its calls they run at, it reads the rows of one moment, or an error.

At every storage call of a read, one after the other, another process runs its services to their end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, product
from pathlib import Path
from typing import TypeAlias

import pytest

from phantombase import PhantombaseError
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import LOCK, archive, compact, long_table, one_row, overwrite, upsert
from tests.support.compaction_steps import open_table
from tests.support.faults import Faults
from tests.support.interleaving import serial_pools
from tests.support.selection import deep
from tests.support.written_tables import written_table

Service: TypeAlias = Callable[[Path], object]

READS = {
    "snapshot": ReadOptions(),
    "filter": ReadOptions(filter="fare >= 0"),
    "read optimized": ReadOptions(query=Query.READ_OPTIMIZED),
    "incremental": ReadOptions(query=Query.INCREMENTAL, begin="earliest"),
}
_INSERTS = WriteOptions(slots=1)
_NUMBERS = count(100)


def _write(path: Path) -> None:
    number = next(_NUMBERS)
    upsert(path, one_row(f"n{number}", number))


def _insert(path: Path) -> None:
    """The base file of a small file group is written anew, by a delta commit."""
    number = next(_NUMBERS)
    upsert(path, one_row(f"i{number}", number), _INSERTS)


def _overwrite(path: Path) -> None:
    number = next(_NUMBERS)
    overwrite(path, one_row(f"o{number}", number))


def _clean(path: Path) -> None:
    clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)


SERVICES: dict[str, Sequence[Service]] = {
    "write": (_write,),
    "compact": (compact,),
    "clean, archive": (_clean, archive),
    "compact, clean, archive": (compact, _clean, archive),
    "writes, archive, clean": (_write, _write, _write, archive, _clean),
    "writes, compact, clean, archive": (_write, _write, _write, compact, _clean, archive),
    "overwrites, clean, archive": (_overwrite, _overwrite, _clean, archive),
    "inserts, clean": (_insert, _insert, _clean),
    "inserts, clean, archive": (_insert, _insert, _insert, _clean, archive),
}
USUAL = {
    (9, "writes, compact, clean, archive", "snapshot"),
    (9, "compact", "incremental"),
    (6, "overwrites, clean, archive", "incremental"),
    (9, "inserts, clean", "snapshot"),
    (6, "inserts, clean, archive", "snapshot"),
}


def rows_of(path: Path, options: ReadOptions, storage: Storage | None = None) -> list[str]:
    """What a read finds, in the order of the text."""
    rows = read_table(open_table(path, storage), options).select(["id", "day", "ts", "fare"])
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize(
    ("version", "services", "read"),
    [one if one in USUAL else deep(*one) for one in product((9, 8, 6), SERVICES, READS)],
)
def test_the_rows_of_one_moment(
    version: int, services: str, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before, between or behind the services; errors are of the tree, and in a usual run there are none."""
    serial_pools(monkeypatch)
    made, options = tmp_path / "trips", READS[read]
    if _insert in SERVICES[services]:
        written_table(made, version, one_row("k0", 0), _INSERTS)
        for _ in range(5):
            _insert(made)
    else:
        long_table(made, version, 5, compact_at=2)
        for number in range(2, 6):
            upsert(made, one_row(f"m{number}", number))
    moments, found = [rows_of(made, options)], list[list[str]]()

    def serve(path: Path) -> None:
        for service in SERVICES[services]:
            service(path)
            with suppress(PhantombaseError):  # what a window of all time needs was cleaned
                moments.append(rows_of(path, options))

    looked = 0
    reads = Faults.of(made, lambda storage: found.append(rows_of(Path(storage.base_path), options, storage)))
    for point, _, error in reads.pauses(serve):
        if (version, services, read) in USUAL or error is None:
            assert error is None
            assert found[-1] in moments, f"services before {point}"
        looked += 1
        del moments[1:]
    assert looked > 6
