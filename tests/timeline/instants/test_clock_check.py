"""Processes in other time zones, clocks that are ahead, and version 6's modification times: what is refused, and the
way out."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.timeline.audit.validate import Retimed, find_mistimed, mistimed, repair_times
from phantombase.timeline.cli.main import app as timeline_app
from phantombase.timeline.errors import ClockError, PhantombaseError, StorageError
from phantombase.timeline.format.instant import format_time, later
from phantombase.timeline.instants.clock_check import ClockOptions, Zone
from phantombase.timeline.instants.table_clock import TableClock
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.view.view import FileGroup, FileSlice
from phantombase.writer_hooks.options import WriteOptions
from tests.support.clock import ONE_BUCKET, schedule, upsert
from tests.support.compaction_steps import open_table, run_all
from tests.support.golden_tables import GOLDEN, one_of, unzip_golden
from tests.support.selection import deep
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

NEW_YORK = "America/New_York"
THERE = ClockOptions(timezone=NEW_YORK)


@pytest.fixture(autouse=True)
def zone(local_zone: Callable[[str], None]) -> Callable[[str], None]:
    """Sets this process's zone: UTC to begin with."""
    local_zone("UTC")
    return local_zone


class AsHudi:
    """A writer in New York that chooses times as Hudi does: by the clock, and never one twice in a process."""

    def __init__(self, path: Path, version: int, zone: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self._zone, self._monkeypatch, self._last = path, zone, monkeypatch, ""
        self._as_there(lambda: written_table(path, version, rows((0, 1, 1.0), (3, 1, 1.0)), ONE_BUCKET))
        self.upsert((0, 2, 2.0))

    def upsert(self, *which: tuple[int, int, float]) -> None:
        self._as_there(lambda: upsert(self.path, rows(*which)))

    def _as_there(self, do: Callable[[], Any]) -> None:
        self._zone(NEW_YORK)
        with self._monkeypatch.context() as patch:
            patch.setattr(Snapshot, "next_time", self._by_clock)
            patch.setattr("phantombase.writer_hooks.commit.transaction.conflict_with_plans", lambda *_, **__: None)
            do()
        self._zone("UTC")

    def _by_clock(self, *_: object) -> str:
        while (now := format_time(datetime.now())) <= self._last:
            time.sleep(0.001)
        self._last = now
        return now


def timeline_of(path: Path) -> Timeline:
    return open_table(path).load_timeline()


@pytest.fixture(params=[9, deep(8), deep(6)], ids="v{}".format)
def hudi(
    request: pytest.FixtureRequest, tmp_path: Path, zone: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> AsHudi:
    """A table that is written in New York; this process is in UTC."""
    return AsHudi(tmp_path / "trips", request.param, zone, monkeypatch)


# --- a process whose clock is ahead of the writers'


def test_a_plan_from_another_zone_is_refused(hudi: AsHudi) -> None:
    """Nothing is requested, nor shown as if it could be; the error says by how much and what to do."""
    before = timeline_of(hudi.path)
    for dry_run in (True, False):
        with pytest.raises(ClockError, match=r"5 h 00 min behind .* UTC-05:00: .*--timezone ZONE"):
            schedule(hudi.path, dry_run=dry_run)
    assert timeline_of(hudi.path) == before


@one_of("hudi", 6, 9, 8, indirect=True)
def test_with_the_zone_no_write_is_lost(hudi: AsHudi) -> None:
    """What the writers write after our compaction is read: at once, and after the next."""
    for round_ in range(2, 4):
        assert schedule(hudi.path, THERE).instant is not None
        run_all(open_table(hudi.path).with_clock(THERE))
        hudi.upsert((0, 1 + round_, 1.0 + round_), (round_ * 3, 1, 1.0))
        found = read_rows(hudi.path)
        assert found["k0000"] == (1 + round_, 1.0 + round_)
        assert f"k{round_ * 3:04d}" in found


def test_our_writer_is_refused_too(hudi: AsHudi) -> None:
    before = timeline_of(hudi.path)
    with pytest.raises(ClockError, match="another time zone"):
        upsert(hudi.path, rows((0, 3, 3.0)))
    assert timeline_of(hudi.path) == before
    writer(rows((0, 3, 3.0))).buckets(1).timezone(NEW_YORK).upsert(str(hudi.path))
    assert read_rows(hudi.path)["k0000"] == (3, 3.0)
    hudi.upsert((0, 4, 4.0))
    assert read_rows(hudi.path)["k0000"] == (4, 4.0)


@pytest.mark.parametrize("hudi", [9, 8, 6], indirect=True)
def test_executing_is_refused_before_it_begins(hudi: AsHudi) -> None:
    """Where a completion time has to be chosen; on version 6 none is."""
    schedule(hudi.path, THERE)
    done = CliRunner().invoke(daemon, ["compact", str(hudi.path), "--executor", "local"])
    if open_table(hudi.path).config.version == 6:
        assert done.exit_code == 0
        return
    assert isinstance(done.exception, ClockError)
    assert not list(hudi.path.glob(".hoodie/.phantombase/2*"))
    done = CliRunner().invoke(daemon, ["compact", str(hudi.path), "--executor", "local", "--timezone", NEW_YORK])
    assert done.exit_code == 0, done.output
    assert read_rows(hudi.path)["k0000"] == (2, 2.0)


def test_the_commands_and_status(hudi: AsHudi) -> None:
    """`schedule` and `status` take the zone; without it `status` says what is wrong."""
    (found,) = findings(hudi.path)
    assert (found["severity"], "5 h 00 min behind" in found["found"]) == ("danger", True)
    assert findings(hudi.path, "--timezone", NEW_YORK) == []
    args = ["schedule", str(hudi.path), "--sole-writer", "--timezone", NEW_YORK, "--json"]
    assert json.loads(CliRunner().invoke(daemon, args).stdout)["instant"] is not None
    refused = CliRunner().invoke(daemon, ["schedule", str(hudi.path), "--sole-writer", "--timezone", "Mars"])
    assert "no such time zone" in str(refused.exception)


@pytest.mark.parametrize("hudi", [9, 8, 6], indirect=True)
def test_operators_give_the_zone_too(hudi: AsHudi) -> None:
    """Savepoints have completion times from version 8 on; a dry run refuses what a run refuses."""
    args = ["savepoint", "create", str(hudi.path), "--json"]
    for who in ("--dry-run", "--sole-writer"):
        done = CliRunner().invoke(daemon, [*args, who])
        if open_table(hudi.path).config.version == 6:
            assert done.exit_code == 0
        else:
            assert isinstance(done.exception, ClockError)
            assert "--timezone ZONE" in str(done.exception)
            assert not list(hudi.path.rglob("*.savepoint*"))
    for who in ("--dry-run", "--sole-writer"):
        assert CliRunner().invoke(daemon, [*args, who, "--timezone", NEW_YORK]).exit_code == 0
    [made] = [i for i in timeline_of(hudi.path).instants if i.action == "savepoint"]
    if made.completion_time is not None:
        behind = datetime.now() - datetime.strptime(made.completion_time[:14], "%Y%m%d%H%M%S")
        assert timedelta(hours=3) < behind < timedelta(hours=6)


@one_of("hudi", 6, 9, 8, indirect=True)
def test_a_plan_is_taken_back_in_the_zone_of_its_writers(hudi: AsHudi) -> None:
    """The metadata table may have to forget it."""
    instant = schedule(hudi.path, THERE).instant
    args = ["unschedule", str(hudi.path), str(instant), "--sole-writer", "--timezone", NEW_YORK]
    assert CliRunner().invoke(daemon, args).exit_code == 0
    refused = CliRunner().invoke(daemon, ["release", str(hudi.path), str(instant), "--timezone", "Mars"])
    assert "no such time zone" in str(refused.exception)


def test_a_clean_from_another_zone_is_refused_by_its_dry_run_too(hudi: AsHudi) -> None:
    for round_ in range(2, 4):
        schedule(hudi.path, THERE)
        run_all(open_table(hudi.path).with_clock(THERE))
        hudi.upsert((0, 1 + round_, 1.0 + round_))
    args = ["clean", str(hudi.path), "--policy", "versions", "--retain", "1", "--floor", "0"]
    before = timeline_of(hudi.path)
    for who in ("--dry-run", "--sole-writer"):
        assert isinstance(CliRunner().invoke(daemon, [*args, who]).exception, ClockError)
    assert timeline_of(hudi.path) == before
    for who in ("--dry-run", "--sole-writer"):
        shown = CliRunner().invoke(daemon, [*args, who, "--timezone", NEW_YORK, "--json"])
        assert json.loads(shown.stdout)["files"] > 0


@pytest.mark.parametrize("hudi", [9, 8, 6], indirect=True)
def test_archiving_from_another_zone_is_refused_where_it_would_keep_wrong_times(hudi: AsHudi) -> None:
    """Of version 6: Hudi 1.x takes the times in the archive for completion times, and slices log files by them."""
    for number in range(3, 6):
        hudi.upsert((0, number, float(number)))
    args = ["archive", str(hudi.path), "--min-instants", "2", "--max-instants", "3", "--compaction-commits", "1"]
    before = timeline_of(hudi.path)
    if before.layout.has_completion_times:
        assert CliRunner().invoke(daemon, [*args, "--sole-writer"]).exit_code == 0
        return
    for who in ("--dry-run", "--sole-writer"):
        assert isinstance(CliRunner().invoke(daemon, [*args, who]).exception, ClockError)
    assert timeline_of(hudi.path) == before
    assert not list(hudi.path.glob(".hoodie/archived/.commits*"))
    for who in ("--dry-run", "--sole-writer"):
        assert CliRunner().invoke(daemon, [*args, who, "--timezone", NEW_YORK]).exit_code == 0
    assert len(timeline_of(hudi.path).instants) == 2


def findings(path: Path, *more: str) -> list[dict[str, Any]]:
    """What `status` says of zones."""
    done = CliRunner().invoke(daemon, ["status", str(path), "--json", *more])
    assert done.exit_code == 0, done.output
    return [f for f in json.loads(done.stdout)["findings"] if f["name"] == "time-zone"]


@pytest.mark.parametrize("hudi", [9, 8, 6], indirect=True)
def test_a_daemon_does_not_serve_it(hudi: AsHudi) -> None:
    """It says why, requests nothing, parks nothing, and serves it with the zone."""
    asks = ["--schedule", "--sole-writer", "--max-delta-commits", "1"]
    done = CliRunner().invoke(daemon, ["run", str(hudi.path), "--once", "--executor", "local", "--json", *asks])
    assert "another time zone" in json.loads(done.stdout)["problems"][str(hudi.path)]
    assert timeline_of(hudi.path).pending_compactions == ()
    schedule(hudi.path, THERE)
    args = ["run", str(hudi.path), "--once", "--executor", "local", "--json"]
    if open_table(hudi.path).config.version > 6:
        done = CliRunner().invoke(daemon, args)
        assert "another time zone" in json.loads(done.stdout)["problems"][str(hudi.path)]
        assert not list(hudi.path.glob(".hoodie/.phantombase/*/failures"))
    done = CliRunner().invoke(daemon, [*args, "--timezone", NEW_YORK])
    assert len(json.loads(done.stdout)["compacted"]) == 1, done.output


# --- a process whose clock is behind


@pytest.mark.parametrize("version", [9, 6])
def test_behind_the_writers(version: int, tmp_path: Path, zone: Callable[[str], None]) -> None:
    """Nothing is hidden by times of max + 1 ms; on version 6 Hudi 1.x would slice otherwise, so there it is refused."""
    path = tmp_path / "trips"
    written_table(path, version, rows((0, 1, 1.0)), ONE_BUCKET)
    upsert(path, rows((0, 2, 2.0)))
    zone(NEW_YORK)
    (found,) = findings(path)
    assert found["severity"] == ("danger" if version == 6 else "warning")
    if version == 6:
        with pytest.raises(ClockError, match="5 h 00 min ahead of"):
            schedule(path)
        return
    newest = max(timeline_of(path).used_times())
    assert schedule(path).instant == later(newest, 1)
    run_all(open_table(path))
    zone("UTC")
    upsert(path, rows((0, 3, 3.0)))
    assert read_rows(path) == {"k0000": (3, 3.0)}


# --- no alarm


def test_golden_tables_raise_no_alarm(tmp_path: Path, zone: Callable[[str], None]) -> None:
    """Unpacked, their files are of this moment: they tell nothing in any zone, and instants can be chosen."""
    for name in GOLDEN:
        table = open_table(unzip_golden(name, tmp_path / name))
        for where in ("UTC", NEW_YORK, "Pacific/Auckland"):
            zone(where)
            assert table.times.writers_zone(table.load_timeline()).zone is Zone.UNKNOWN, (name, where)
            table.snapshot().next_time()


def test_a_table_in_utc_has_its_own_zone(tmp_path: Path, zone: Callable[[str], None]) -> None:
    path = str(tmp_path / "trips")
    conf = {"hoodie.table.timeline.timezone": "UTC"}
    for where in (NEW_YORK, "Asia/Tokyo", "UTC"):
        zone(where)
        described = writer(rows((0, 1, 1.0))).table("trips").key("id").partition("day").ordering("ts")
        described.conf(conf).upsert(path)
        described.timezone("Asia/Kolkata").upsert(path)
    assert schedule(Path(path), ClockOptions(timezone="Asia/Kolkata")).instant is not None


# --- clocks


class OtherClock(LocalStorage):
    """A storage whose clock is an hour behind this machine's."""

    def _earlier(self, entry: Entry) -> Entry:
        return Entry(
            name=entry.name,
            is_folder=entry.is_folder,
            size=entry.size,
            modified_ms=0 if entry.is_folder else entry.modified_ms - 3_600_000,
        )

    def list(self, folder: str) -> list[Entry]:
        return [self._earlier(e) for e in super().list(folder)]

    def find(self, path: str) -> Entry | None:
        entry = super().find(path)
        return entry and self._earlier(entry)


@one_of("version", 9, 6)
def test_a_clock_ahead_of_the_storages(version: int, tmp_path: Path) -> None:
    """It is refused, nothing is left of the snapshot; a clock that may be so far ahead is not."""
    path = tmp_path / "trips"
    written_table(path, version, rows((0, 1, 1.0)), ONE_BUCKET)
    for entry in (path / ".hoodie").rglob("2*"):
        os.utime(entry, (entry.stat().st_mtime - 600,) * 2)  # the newest file tells nothing then
    table = Table.on(OtherClock(str(path)))
    with pytest.raises(ClockError, match=r"ahead of the storage's.* found 3,[56]\d\d s"):
        table.snapshot().next_time()
    assert not list((path / ".hoodie/.phantombase/tmp").iterdir())
    table = table.with_clock(ClockOptions(clock_skew_s=4000))
    assert table.snapshot().next_time() > max(table.load_timeline().used_times())


def test_an_instant_ahead_of_the_writers(tmp_path: Path) -> None:
    """A process in another zone has compacted: a plan behind its instant would hide what comes. Writes go on."""
    path = tmp_path / "trips"
    written_table(path, 9, rows((0, 1, 1.0)), ONE_BUCKET)
    upsert(path, rows((0, 2, 2.0)))
    table = open_table(path)
    ahead = format_time(table.now() + timedelta(hours=5))
    (path / table.config.timeline_folder / f"{ahead}.clean.requested").touch()
    for dry_run in (True, False):
        with pytest.raises(ClockError, match=rf"{later(ahead, 1)}.*5 h 00 min ahead"):
            schedule(path, dry_run=dry_run)
    upsert(path, rows((0, 3, 3.0)))
    assert read_rows(path) == {"k0000": (3, 3.0)}


# --- version 6: modification times


@pytest.fixture
def sliced(tmp_path: Path) -> Path:
    """A table of version 6 with a compaction between logs."""
    path = tmp_path / "trips"
    written_table(path, 6, rows((0, 1, 1.0)), ONE_BUCKET)
    upsert(path, rows((0, 2, 2.0)))
    schedule(path)
    run_all(open_table(path))
    upsert(path, rows((0, 3, 3.0)))
    return path


def completed(path: Path) -> list[Path]:
    """The completed files of the timeline, earliest first."""
    return sorted(p for p in (path / ".hoodie").glob("2*") if p.suffix in (".commit", ".deltacommit"))


def set_time(path: Path, seconds: float) -> float:
    """Makes a file that much older than now."""
    at = time.time() - seconds
    os.utime(path, (at, at))
    return at


def test_a_new_instant_exceeds_modification_times(sliced: Path) -> None:
    """Hudi 1.x takes them for completion times."""
    at = set_time(completed(sliced)[-1], -20)  # in the future, within the skew
    table = open_table(sliced)
    chosen = table.snapshot().next_time()
    assert chosen == later(table.times.moment(int(at * 1000)), 1)
    set_time(completed(sliced)[-1], -1200)
    with pytest.raises(ClockError, match=r"modification time in the future.*deltacommit.* found 1,[12]\d\d s"):
        table.snapshot().next_time()
    (found,) = find_mistimed(table)
    assert found.why == "in the future"


def test_an_instant_that_a_clock_far_ahead_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command sets its file back, since its name is of then too: the error says what ends it."""
    path, days = tmp_path / "trips", 40
    written_table(path, 6, rows((0, 1, 1.0)), ONE_BUCKET)
    now = TableClock.now
    with monkeypatch.context() as patch:
        patch.setattr(TableClock, "now", lambda self: now(self) + timedelta(days=days))
        upsert(path, rows((0, 2, 2.0)))
    set_time(completed(path)[-1], -days * 86400)
    for _ in range(2):
        with pytest.raises(ClockError, match=r"wait until then.*--clock-skew"):
            upsert(path, rows((0, 3, 3.0)))
        assert CliRunner().invoke(timeline_app, ["repair-times", str(path), "--all"]).exit_code == 0
    far = WriteOptions(buckets=1, slots=1, clock=ClockOptions(clock_skew_s=(days + 1) * 86400.0))
    upsert(path, rows((0, 3, 3.0)), far)
    assert read_rows(path) == {"k0000": (3, 3.0)}


def test_completions_from_before_an_upgrade(tmp_path: Path) -> None:
    """Their files' times stand for completion times on version 9 too."""
    path = unzip_golden("v9_plain", tmp_path)
    named = min((path / ".hoodie/timeline").glob("*.deltacommit"))
    at = set_time(named.rename(named.with_name(f"{named.name[:17]}.deltacommit")), -20)
    table = open_table(path)
    assert table.snapshot().next_time() == later(table.times.moment(int(at * 1000)), 1)


def test_what_is_right_is_not_listed(sliced: Path) -> None:
    assert find_mistimed(open_table(sliced)) == ()
    assert invoke("validate", sliced) == "good: no metadata table\n"


def test_a_copy_without_times(sliced: Path) -> None:
    """The instants below the last compaction are listed, and only those; repairing is idempotent."""
    for file in completed(sliced):
        set_time(file, 0)
    first, _, compaction, _ = (p.name.partition(".")[0] for p in completed(sliced))
    (found,) = find_mistimed(open_table(sliced))
    assert found.instant == first
    assert f"not before the next slice {compaction}" in found.why
    shown = invoke("validate", sliced, code=1)
    assert re_found(shown, f"mistimed: {first}: .hoodie/{first}.deltacommit was modified at")
    assert "timeline repair-times" in shown
    assert invoke("repair-times", sliced, "--dry-run") == f".hoodie/{first}.deltacommit: {first}\n1 time to set\n"
    assert len(find_mistimed(open_table(sliced))) == 1
    assert invoke("repair-times", sliced).endswith("1 time set\n")
    assert find_mistimed(open_table(sliced)) == ()
    assert invoke("repair-times", sliced) == "0 times set\n"
    assert invoke("validate", sliced) == "good: no metadata table\n"


def re_found(text: str, wanted: str) -> bool:
    """Whether a text has these words, however its lines are broken."""
    return "".join(wanted.split()) in "".join(text.split())


def test_a_slice_without_logs_has_no_wrong_time() -> None:
    """No log can lie on it but on the newest; archived instants have no file at all."""
    first, second, third = (f"2026112200000000{n}" for n in (1, 2, 3))
    slices = tuple(
        FileSlice(partition="p", file_id="f", base_instant=instant, base=None, logs=())
        for instant in (first, second, third)
    )
    group = FileGroup(partition="p", file_id="f", slices=slices)
    late = "20261122000000009"
    assert mistimed([group], {first: late, third: late}, now=late) == {}
    assert mistimed([group], {third: first}, now=late) == {third: "before the instant itself"}
    assert list(mistimed([group], {second: late}, now=first)) == [second]


def test_a_time_before_the_instant(sliced: Path) -> None:
    """Hudi 1.x would put the logs on an older slice."""
    last = completed(sliced)[-2]
    set_time(last, 86_400)
    (found,) = find_mistimed(open_table(sliced))
    assert (found.path, found.why) == (f".hoodie/{last.name}", "before the instant itself")


def test_validate_in_another_zone_asks_for_it(sliced: Path, zone: Callable[[str], None]) -> None:
    """All times would look wrong there, and be made wrong."""
    zone("Asia/Tokyo")
    before = [p.stat().st_mtime_ns for p in completed(sliced)]
    for command in ("validate", "repair-times"):
        with pytest.raises(ClockError, match="another time zone"):
            invoke(command, sliced)
    assert [p.stat().st_mtime_ns for p in completed(sliced)] == before
    assert invoke("validate", sliced, "--timezone", "UTC") == "good: no metadata table\n"


@one_of("name", "v6_plain", "v9_plain")
def test_all_times_of_a_copy(name: str, tmp_path: Path, zone: Callable[[str], None]) -> None:
    """They tell the writers' zone then, on every version."""
    path = unzip_golden(name, tmp_path)
    invoke("repair-times", path, "--all", "--timezone", "UTC")
    assert open_table(path).times.writers_zone(timeline_of(path)).zone is Zone.AGREES
    zone("Asia/Tokyo")
    assert open_table(path).times.writers_zone(timeline_of(path)).offset == timedelta(hours=9)


def test_a_storage_that_keeps_no_times(sliced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused by name."""
    monkeypatch.setattr(LocalStorage, "set_modified", lambda *_: None)
    name = completed(sliced)[0].name
    with pytest.raises(StorageError, match="does not keep the modification time"):
        repair_times(open_table(sliced), [Retimed(path=f".hoodie/{name}", time="20200101000000000")])


def invoke(command: str, path: Path, *more: str, code: int = 0) -> str:
    """stdout of a `timeline` command."""
    done = CliRunner().invoke(timeline_app, [command, str(path), *more])
    if isinstance(done.exception, PhantombaseError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.stdout
