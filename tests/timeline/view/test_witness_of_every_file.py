"""Every data file of every golden table, damaged in every way, and beside every kind of stray: never other rows.

A damaged file that an active completed write names is an error that names it, or the rows are the same: nothing needs
the file. A stray file is passed over. No service publishes anything wrong meanwhile: with the whole file back all rows
are there."""

from __future__ import annotations

import shutil
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.service.loading import load_state
from phantombase.timeline.service.routes import PREFIX, ROUTES
from phantombase.timeline.table.table import Table
from phantombase.timeline.view import grouping
from phantombase.timeline.view.view import latest_base
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import DAMAGES, GOLDEN, Damage, put, unzip_golden, witnessed
from tests.support.selection import ALL, deep
from tests.support.service_client import ServiceClient, known

STRAYS: dict[str, Damage] = {
    "empty": lambda data: b"",
    "four bytes": lambda data: data[:4],
    "half": lambda data: data[: len(data) // 2],
    "whole": lambda data: data,
}
STRANGERS = (".nfs000000000000001", ".nfs.log.0001", ".a.log.b", "part-00000-1c2d.c000.snappy.parquet", "x.parquet")
USUAL = ("v6_log_compacted", "v9_pending")
TABLES = [name if name in USUAL else deep(name) for name in (*GOLDEN, "more/v9_copy_on_write")]
SERVED = [name if name == "v9_commit_time" else deep(name) for name in GOLDEN if not name.endswith("_event_time")]
"""Not those in which Hudi reads other rows before the compaction of a delete without ordering value than behind it."""


def rows(path: Path) -> pa.Table:
    return read_table(Table.open(str(path), reading=True))


@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_file_is_named_or_not_needed(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    whole = rows(path)
    for file in witnessed(path):
        data = file.read_bytes()
        for what, damage in DAMAGES.items():
            put(file, damage(data))
            refusal, found = None, None
            try:
                found = rows(path)
            except PhantombaseError as error:
                refusal = str(error)
            if found is not None:
                assert_same_rows(found, whole)
            else:
                assert file.name in str(refusal), f"{what}: {file}"
        file.write_bytes(data)


@pytest.mark.parametrize("name", TABLES)
def test_a_stray_is_passed_over(name: str, tmp_path: Path) -> None:
    """Files of two other attempts sort before and behind the one that the write names."""
    path = unzip_golden(name, tmp_path)
    whole = rows(path)
    for file in witnessed(path):
        data, parsed = file.read_bytes(), parse_data_file(file.name)
        assert parsed is not None
        attempts = [_with_token(parsed, token) for token in ("0-0-0", "9-999-999")]
        left = [(attempts, make(data) or b"") for make in list(STRAYS.values())[:: 1 if ALL else 3]]
        for names, content in [*left, (_left_by_dead_tasks(parsed), data[: len(data) // 2])]:
            strays = [file.with_name(name) for name in names]
            for stray in strays:
                stray.write_bytes(content)
            assert_same_rows(rows(path), whole)
            for stray in strays:
                stray.unlink()
    for folder in sorted({file.parent for file in witnessed(path)}):
        for stranger in STRANGERS:
            (folder / stranger).write_bytes(b"x")
    assert_same_rows(rows(path), whole)


def _left_by_dead_tasks(name: BaseFileName | LogFileName) -> list[str]:
    """The next log file, another file group's base file of the same write, one of a dead write, and partial copies."""
    if isinstance(name, LogFileName):
        of_log = f".{name.file_id}_{name.instant}.log"
        return [f"{of_log}.{name.version + 50}_7-7-7", f"{of_log}.{name.version + 51}", f".{name}.crc"]
    later = str(int(name.instant) + 1).zfill(len(name.instant))
    other = f"ffffffff-ffff-4fff-8fff-ffffffffffff-0_7-7-7_{name.instant}{name.extension}"
    return [other, f"{name.file_id}_7-7-7_{later}{name.extension}", f"{name}.tmp", f".{name}.crc"]


def _with_token(name: BaseFileName | LogFileName, token: str) -> str:
    if isinstance(name, BaseFileName):
        return f"{name.file_id}_{token}_{name.instant}{name.extension}"
    return f".{name.file_id}_{name.instant}.log.{name.version}_{token}"


@pytest.mark.parametrize("name", SERVED)
def test_no_service_makes_a_damage_final(name: str, tmp_path: Path) -> None:
    """Planning, compaction and cleaning beside the damage, then the whole file is back."""
    path = unzip_golden(name, tmp_path / "table")
    whole = rows(path)
    for number, file in enumerate(witnessed(path)):
        for damage in DAMAGES.values():
            copy = tmp_path / f"{number}" / path.name
            shutil.copytree(path, copy)
            mine = copy / file.relative_to(path)
            data = mine.read_bytes()
            put(mine, damage(data))
            for serve in (_schedule, _compact, _clean):
                with suppress(PhantombaseError):
                    serve(copy)
            mine.write_bytes(data)
            assert_same_rows(rows(copy), whole)
            shutil.rmtree(copy.parent)


def _schedule(path: Path) -> None:
    schedule_compaction(Table.open(str(path)), ProcessLock("test"))


def _compact(path: Path) -> None:
    run_compactions(
        str(path),
        drop_metadata=True,
        output=OutputOptions(),
        execute=ExecuteOptions(executor=Executor.LOCAL),
        attempt=AttemptOptions(),
    )


def _clean(path: Path) -> None:
    clean_table(Table.open(str(path)), CleanOptions(retain=1, floor_s=0), ProcessLock("test"))


@pytest.mark.parametrize("name", [name if name == "v9_pending" else deep(name) for name in GOLDEN])
def test_the_timeline_service_has_the_slices_of_the_view(name: str, tmp_path: Path) -> None:
    """Beside each damage and each stray; a partition with a lost or damaged file is refused, the others are served."""
    path = unzip_golden(name, tmp_path)
    for file in witnessed(path):
        data, parsed = file.read_bytes(), parse_data_file(file.name)
        assert parsed is not None
        stray = file.with_name(_with_token(parsed, "9-999-999"))
        for damage in (*DAMAGES.values(), STRAYS["whole"]):
            put(file, damage(data))
            stray.write_bytes(data[:9])
            _assert_served_as_viewed(path)
            stray.unlink()
        if file.suffix == ".parquet":  # whole, in other bytes
            pq.write_table(pq.read_table(file), file, compression="none")
            _assert_served_as_viewed(path)
        file.write_bytes(data)


def _assert_served_as_viewed(path: Path) -> None:
    table = Table.open(str(path))
    view, state = table.load_view(), load_state(table)
    assert [g for _, files in sorted(state.partitions.items()) for g in files.groups] == list(view.groups)
    assert state.refused == {g.partition for g in view.groups if g.flaws}


@pytest.mark.parametrize("name", [name if name == "v9_pending" else deep(name) for name in GOLDEN])
def test_no_answer_over_http_names_a_damaged_file_or_a_stray(name: str, tmp_path: Path) -> None:
    """Not as long as its file group lives: answers about replaced groups, and plans, name files as Hudi's do.

    Bytes of the same length, and past file slices, are seen by who reads them."""
    path = unzip_golden(name, tmp_path)
    newest = {group.file_id: latest_base(group) for group in Table.open(str(path)).load_view().groups}
    for file in list(witnessed(path))[:: 1 if ALL else 4]:
        data, parsed = file.read_bytes(), parse_data_file(file.name)
        assert parsed is not None
        base = newest.get(parsed.file_id)
        if base is not None and parsed.instant < base.name.instant:
            continue
        stray = file.with_name(_with_token(parsed, "9-999-999"))
        for what in ("gone", "empty", "halved", "ten bytes short")[:: 1 if ALL else 2]:
            put(file, DAMAGES[what](data))
            stray.write_bytes(data[:9])
            for route, text in _answers(path, file.parent, parsed.file_id).items():
                named = {one for one in (file.name, stray.name) if one in text}
                assert not named, f"{route}: {what}: {named}"
            stray.unlink()
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(data)


def _answers(path: Path, folder: Path, file_id: str) -> dict[str, str]:
    """What the timeline service answers about a partition and a file group of it, by route; not its refusals."""
    partition = str(folder.relative_to(path)).removeprefix(".")
    times = [i.requested_time for i in Table.open(str(path)).load_timeline().completed]
    given = dict.fromkeys(("instant", "maxinstant", "currentinstant"), "9" * 17)
    given |= {"partition": partition, "fileid": file_id, "instants": ",".join(times), "mininstant": "0"}
    client = ServiceClient.of(path)
    found: dict[str, str] = {}
    for route in ROUTES.keys() - {"compactions/pending", "logcompactions/pending", "slices/partition/latest/inflight"}:
        reply = client.ask(f"{PREFIX}{route}/", **known(path), **given, includependingcompaction="true")
        if reply.status == 200 and "replaced" not in route:
            found[route] = reply.text
    client.loop.close()
    assert len(found) > 2  # the timeline's
    return found


def test_the_usual_file_group_is_as_every_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way for a group of one named base file gives what the long one does, whatever was damaged."""
    short, seen = grouping._is_all, list[bool]()

    def counted(*of: Any) -> bool:
        seen.append(short(*of))
        return seen[-1]

    for name in (*GOLDEN, "more/v9_copy_on_write") if ALL else (*USUAL, "v8_archived", "more/v9_copy_on_write"):
        path = unzip_golden(name, tmp_path)
        bases = [file for file in witnessed(path) if file.suffix == ".parquet"][:3]
        logs = [file for file in witnessed(path) if file.suffix != ".parquet"][:2]
        for file, damage in [(None, None), *product([*bases, *logs], (None, *DAMAGES.values()))]:
            data = b"" if file is None else file.read_bytes()
            if file is not None and damage is not None:
                put(file, damage(data))
            elif file is not None:
                file.with_name(file.name.replace("-0_", "-0_9")).write_bytes(data)  # of another attempt
            with monkeypatch.context() as patched:
                patched.setattr(grouping, "_is_all", counted)
                found = Table.open(str(path), reading=True).load_view()
                patched.setattr(grouping, "_is_all", lambda *_: False)
                assert Table.open(str(path), reading=True).load_view().groups == found.groups, f"{name} {file}"
            if file is not None:
                put(file, data)
    assert {True, False} == set(seen)
