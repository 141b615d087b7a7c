"""Heartbeats: whose they are, how long they count, and what stays when their writer fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.errors import StorageError
from phantombase.timeline.locks.heartbeat import (
    EXPIRY_S,
    Heartbeat,
    Heartbeats,
    Process,
    heartbeat,
    heartbeat_path,
    is_live,
    read_heartbeat,
)
from phantombase.timeline.storage.local import LocalStorage
from tests.support.failing_storage import Call, HookedStorage

T = "20260101000000000"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """An empty table."""
    return LocalStorage(str(tmp_path))


def beat(age_s: float, *, ours: bool = False, owner_gone: bool = False) -> Heartbeat:
    """A heartbeat of that age at 1 000 000 s."""
    return Heartbeat(beat_ms=int((1_000_000 - age_s) * 1000), ours=ours, owner_gone=owner_gone)


def test_a_heartbeat_counts_for_two_missed_intervals_of_hudi() -> None:
    """At exactly 120 s Hudi's writer still counts as alive; without a file, or with its process gone, it does not."""
    now = 1_000_000_000
    assert [is_live(beat(age), now) for age in (0, EXPIRY_S, EXPIRY_S + 0.001)] == [True, True, False]
    assert is_live(beat(-5), now)  # the storage's clock is ahead
    assert not is_live(None, now)
    assert not is_live(beat(0, ours=True, owner_gone=True), now)
    assert is_live(beat(50), now, 50) is not is_live(beat(51), now, 50)


def test_ours_names_its_process_and_hudis_names_nothing(storage: LocalStorage) -> None:
    """Recognised by what it begins with; whatever is behind, it is ours."""
    assert read_heartbeat(storage, T) is None
    with heartbeat(storage, T, 100.0):
        found = read_heartbeat(storage, T)
        assert found is not None
        assert (found.ours, found.owner_gone) == (True, False)
        assert abs(found.beat_ms / 1000 - time.time()) < 60
        text = storage.read(heartbeat_path(T)).decode()
        assert json.loads(text.removeprefix("phantombase\n")) == asdict(Process.current())
    assert read_heartbeat(storage, T) is None
    for data, ours in ((b"", False), (b"x", False), (b"phantombase\n", True), (b"phantombase\n{}", True)):
        storage.overwrite(heartbeat_path(T), data)
        found = read_heartbeat(storage, T)
        assert found is not None
        assert (found.ours, found.owner_gone) == (ours, False), data


def test_a_note_is_that_of_the_last_beat(storage: LocalStorage) -> None:
    """Asked again at each beat; a process is found behind any note, also a strange one."""
    steps = iter(range(1000))
    with heartbeat(storage, T, 0.02, note=lambda: {"done": next(steps), "total": 1000}):
        first = read_heartbeat(storage, T)
        deadline = time.monotonic() + 60
        while (now := read_heartbeat(storage, T)) is None or now.note is None or now.note["done"] < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert first is not None
    assert first.owner == now.owner == Process.current()
    assert first.note is not None
    assert now.note["total"] == 1000
    me = asdict(Process.current())
    for said, note in ((me, None), (me | {"note": {"a": 1}}, {"a": 1}), (me | {"note": 7}, None)):
        storage.overwrite(heartbeat_path(T), b"phantombase\n" + json.dumps(said).encode())
        found = read_heartbeat(storage, T)
        assert found is not None
        assert (found.owner, found.note) == (Process.current(), note)


_RENAME = "open('/proc/self/comm', 'w').write('a) Z 1 (')"


def test_a_process_that_ended_is_gone_and_so_is_one_that_was_replaced() -> None:
    """Killed but not yet waited for; waited for; another one under its number. Elsewhere: nobody can tell. Its name may
    look like the state of a dead one."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"import time; {_RENAME}; print(flush=True); time.sleep(600)"], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    me = Process.current()
    stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    there = replace(me, pid=child.pid, started=int(stat[19]))
    assert not there.is_gone()
    assert replace(there, started=there.started - 1).is_gone()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert there.is_gone()
    child.wait()
    child.stdout.close()
    assert there.is_gone()
    for elsewhere in (replace(there, host="another"), replace(there, boot="another"), replace(there, boot="")):
        assert not elsewhere.is_gone()
    assert not me.is_gone()
    assert not replace(me, pid=10**30).is_gone()


def test_nobody_is_gone_where_no_machine_can_be_told_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number says nothing then: elsewhere than on Linux only a heartbeat's age counts."""
    monkeypatch.setattr("phantombase.timeline.locks.heartbeat._boot", lambda: "")
    assert not replace(Process.current(), started=1).is_gone()


def test_a_heartbeat_removed_while_it_is_read_is_none(storage: LocalStorage) -> None:
    """Its owner has just ended well: no reason for anybody else to fail."""
    storage.overwrite(heartbeat_path(T), b"")

    def removed(call: Call) -> Any:
        if call.name == "read":
            storage.delete(call.path)
        return call.do()

    assert read_heartbeat(HookedStorage(storage, removed), T) is None


def test_a_late_beat_leaves_nothing_behind(storage: LocalStorage) -> None:
    """One that is on its way when the work ends is waited for: a file made after that would say "alive" again."""
    begun = threading.Event()

    def slowly(call: Call) -> Any:
        if call.name == "overwrite" and threading.current_thread().name == f"heartbeat-{T}":
            begun.set()
            time.sleep(0.2)
        return call.do()

    with heartbeat(HookedStorage(storage, slowly), T, 0.01):
        assert begun.wait(60)
        thread = next(t for t in threading.enumerate() if t.name == f"heartbeat-{T}")
    thread.join(60)
    assert storage.find(heartbeat_path(T)) is None


def test_a_dead_process_of_ours_has_no_fresh_heartbeat(storage: LocalStorage) -> None:
    """Its file is young and yet says it is dead."""
    gone = replace(Process.current(), started=1)
    storage.overwrite(heartbeat_path(T), b"phantombase\n" + json.dumps(asdict(gone)).encode())
    found = read_heartbeat(storage, T)
    assert found is not None
    assert found.owner_gone
    assert not is_live(found, int(time.time() * 1000))


@pytest.mark.parametrize("keep", [True, False])
def test_what_stays_after_an_error(storage: LocalStorage, keep: bool) -> None:
    """A writer's stays, as Hudi's does; a compactor's goes."""

    def failing() -> None:
        with heartbeat(storage, T, 100.0) as heartbeats:
            heartbeats.keep_on_error = keep
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert (storage.find(heartbeat_path(T)) is not None) == keep
    with heartbeat(storage, T, 100.0) as heartbeats:
        heartbeats.keep_on_error = keep
    assert storage.find(heartbeat_path(T)) is None


def test_a_heartbeats_that_stopped_once_has_lapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it goes on later: somebody may have looked meanwhile."""
    clock = [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    heartbeats = Heartbeats()
    for step, lapsed in ((60, False), (119, False), (121, True), (1, True)):
        clock[0] += step
        heartbeats.felt()
        assert heartbeats.lapsed() == lapsed
    fresh = Heartbeats()
    clock[0] += 119
    assert not fresh.lapsed()
    clock[0] += 1
    assert fresh.lapsed()


def test_beats_that_fail_are_no_beats(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are logged; the heartbeats tells."""
    with heartbeat(storage, T, 0.01) as heartbeats:
        monkeypatch.setattr(LocalStorage, "overwrite", _full)
        time.sleep(0.1)
        assert heartbeats.lapsed(0.05)


def test_work_without_a_first_beat_does_not_begin(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file means dead: others would undo at once what it does."""
    monkeypatch.setattr(LocalStorage, "overwrite", _full)
    with pytest.raises(StorageError, match="full"), heartbeat(storage, T, 0.01):
        pytest.fail("it began")


def _full(self: LocalStorage, path: str, data: bytes) -> None:
    raise StorageError("full", path=path)
