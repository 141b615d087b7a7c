"""Asks the timeline service in this process, without a network."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from phantombase.timeline.dashboard.actions import ActionApp, OrderRunner
from phantombase.timeline.dashboard.orders import CommandSettings
from phantombase.timeline.dashboard.overview import as_json
from phantombase.timeline.dashboard.people_app import LoginApp, PeopleApp
from phantombase.timeline.dashboard.table_rows import TableInfo, TablePlace
from phantombase.timeline.dashboard.verdict import NOTHING, CheckOptions, TableFacts, Unfinished, care_of
from phantombase.timeline.errors import UnknownStateError
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.asgi import Access
from phantombase.timeline.service.loading import load_state
from phantombase.timeline.service.routes import PREFIX
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.service.table_state import counted, digest
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileSlice
from tests.support.compaction_steps import open_table, run_all
from tests.support.golden_tables import unzip_golden


@dataclass(frozen=True, slots=True)
class Reply:
    """What the service answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """Sends requests to an application; one after the other, or at once."""

    app: ServiceApp
    loop: asyncio.AbstractEventLoop

    @staticmethod
    def of(
        *paths: object,
        cache_bytes: int = 64 << 20,
        markers: bool = False,
        slo_s: float | None = None,
        access: Access | None = None,
        stored: TableInfo | None = None,
    ) -> ServiceClient:
        tables = ServedTables(map(str, paths))
        return ServiceClient.of_tables(tables, cache_bytes, markers=markers, slo_s=slo_s, access=access, stored=stored)

    @staticmethod
    def of_tables(
        tables: ServedTables,
        cache_bytes: int = 64 << 20,
        *,
        markers: bool = False,
        slo_s: float | None = None,
        access: Access | None = None,
        stored: TableInfo | None = None,
    ) -> ServiceClient:
        access = access or Access()
        pages, login = PeopleApp(tables, slo_s, stored=stored), LoginApp(access)
        app = ServiceApp(tables, cache_bytes, access=access, markers=markers, pages=pages, login=login)
        return ServiceClient(app, asyncio.new_event_loop())

    def ask(self, path: str, method: str = "GET", **query: str) -> Reply:
        return self.ask_with({}, path, method, **query)

    def ask_with(self, sent: Mapping[str, str], path: str, method: str = "GET", /, **query: str) -> Reply:
        """`sent`: headers."""
        return self.loop.run_until_complete(self.send(path, urlencode(query).encode(), method, sent))

    def all_at_once(self, path: str, queries: Sequence[Mapping[str, str]], method: str = "GET") -> list[Reply]:
        async def run() -> list[Reply]:
            return list(await asyncio.gather(*(self.send(path, urlencode(q).encode(), method) for q in queries)))

        return self.loop.run_until_complete(run())

    async def send(
        self,
        path: str,
        query: bytes = b"",
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        client: str = "127.0.0.1",
    ) -> Reply:
        sent: list[MutableMapping[str, Any]] = []
        given = {"accept-encoding": "gzip", "host": "localhost", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": quote(path, safe="/%").encode(),
            "query_string": query,
            "headers": [(k.encode(), v.encode()) for k, v in given.items()],
            "client": (client, 1),
        }

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def keep(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, keep)
        names = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        body = b"".join(m.get("body", b"") for m in sent[1:])
        if names.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        return Reply(sent[0]["status"], names, body)


class Knows:
    """A fleet_info of one daemon, which knows a compaction of the table `pending`."""

    def __init__(self, state: str = "parked", *, fails: bool = False, slo_s: float | None = None) -> None:
        self._state, self._fails, self._slo_s = state, fails, slo_s

    def slo_s(self, path: str) -> float | None:
        return self._slo_s

    def trigger(self, table: Table) -> TriggerOptions:
        return TriggerOptions()

    def last_known(self, table: Table) -> None:
        return None

    def about(self, table: Table, lag: object = None, *, whole: bool = True) -> dict[str, Any]:
        if self._fails:
            raise UnknownStateError("ZooKeeper does not answer")
        more: dict[str, Any] = {"clusterings": [], "in_progress": [], "next_plan": None, "requests": False}
        if table.storage.base_path.rpartition("/")[2] != "pending":
            return {"pending": [], "writes": [], "findings": [], **more}
        work = {"holder": "daemon-1", "host": "a", "pid": 7, "beat_s": None, "for_s": 60.0, "done": 3, "total": 12,
                "input_bytes": 4096}  # fmt: skip
        failures = {"count": 8, "error": "StorageError", "what": "no space left", "who": "daemon-1", "last_s": 30.0}
        pending = {
            "action": "compaction",
            "instant": next(i.requested_time for i in table.load_timeline().pending_compactions),
            "input_bytes": 8192,
            "failures": failures if self._state == "parked" else None,
            "state": self._state,
            "why": "it failed",
            "unfinished": [{"partition": "north", "file_id": "the-large-one", "log_bytes": 4096}],
            "problem": None,
            "work": work,
        }
        write = {"instant": "20261121091340983", "holds": [pending["instant"]]}
        works = Unfinished(action="compaction", instant=str(pending["instant"]), state=self._state, age_s=99.0,
                           at_work=True, is_compaction=True, why="it failed")  # fmt: skip
        facts = TableFacts(kind="", has_logs=True, completed=0, pending=(works,))
        findings = as_json([*care_of(facts, CheckOptions(), self._slo_s)])
        return {"pending": [pending], "writes": [write], "findings": findings, **more}

    def placed(self, path: str) -> TablePlace:
        return TablePlace(pool="*", served_by=("daemon-1",), own=True)

    def fleet(self, busy: Sequence[str] = ()) -> dict[str, Any]:
        me = {"who": "daemon-1", "host": "a", "pid": 7, "tables": 1, "of_tables": 2, "troubled": 0, "pages": None,
              "running": [{"table": "/data/pending", "instant": "20261121091332703"}]}  # fmt: skip
        claim = {"table": "/data/pending", "instant": "20261121091332703", "holder": "daemon-1", "host": "a", "pid": 7,
                 "for_s": 60.0, "done": 3, "total": 12}  # fmt: skip
        return {"zookeeper": True, "daemons": [me], "pools": [], "claims": [claim]}


def rows_of(count: int) -> list[dict[str, Any]]:
    """Rows of the index of tables: of each twenty one is broken and two need care."""
    health, words = (
        ["broken", "needs care", "needs care", *["well"] * 17],
        {"broken": "a file is lost", "well": NOTHING},
    )
    return [
        {
            "served_as": f"sales/orders_{n + 1}",
            "path": f"s3://warehouse-of-the-company/lake/sales/orders_{n + 1}",
            "health": (state := health[n % len(health)]),
            "reason": words.get(state, "compaction 20261121091332703 has failed too often and is not tried any more"),
            "slo_s": 900.0,
            "pool": "sales/*",
            "served_by": [f"ip-10-0-4-{n % 3}.eu-central-1.compute.internal:{4000 + n % 3}"],
            "pending_compactions": int(state == "needs care"),
            "oldest_pending_s": 1000.0 * (n % 7) if state == "needs care" else None,
            "delta_commits_since_compaction": n % 11,
            "log_files": 13 * (n % 9),
            "log_files_max": n % 9,
            "log_bytes": 7 << 20,
            "log_bytes_waiting": 3 << 20,
            "base_bytes": 9 << 30,
            "writes_last_hour": 12,
            "compactions_last_hour": 2,
            "read_amplification": 1.25,
            "last_write": "20261121091332703",
            "seconds_since_write": 60.0 * n,
        }
        for n in range(count)
    ]


def pending(**more: Any) -> dict[str, Any]:
    return {"instant": "1", "action": "compaction", "problem": None, "heartbeat": "none", **more}


TOKEN = "a token of twenty-seven bytes"
ACCESS = Access(token=TOKEN)
SOLE = CommandSettings(sole_writer=True)
COMMAND = (sys.executable, "-m", "phantombase.compactor_daemon.cli.main")


def service(*paths: Path, command: tuple[str, ...] = COMMAND, settings: CommandSettings = SOLE) -> ServiceClient:
    tables = ServedTables(map(str, paths))
    acts = ActionApp(ACCESS, OrderRunner(command), settings)
    people = PeopleApp(tables, settings=settings, actions=acts)
    app = ServiceApp(tables, 1 << 20, access=ACCESS, pages=people, login=LoginApp(ACCESS))
    return ServiceClient(app, asyncio.new_event_loop())


_IN_ORDER = ("logFiles", "slices", "instants")
_LOADED_SO_FAR = "datafiles/all/latest/"
"""The real server answers this one of the partitions that were loaded so far; the service of all."""


def _canonical(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {k: _canonical(v, k) for k, v in value.items()}
    if isinstance(value, list):
        items = [_canonical(v) for v in value]
        return items if name in _IN_ORDER else sorted(items, key=lambda v: json.dumps(v, sort_keys=True))
    return value


def _comparable(value: Any, name: str = "", *, old: bool, version_6: bool) -> Any:
    """The answer without what cannot be reproduced: modification times, completion times of version 6, and what
    0.15.0 did not know; the first file group's timeline is compared apart."""

    def below(v: Any, key: str) -> Any:
        return _comparable(v, key, old=old, version_6=version_6)

    if isinstance(value, dict):
        kept = dict(value)
        if "ts" in kept and old:
            kept = {k: v for k, v in kept.items() if k not in ("requestedTime", "completionTime")}
        if "completionTime" in kept and version_6:
            kept["completionTime"] = "*"
        if "modificationTime" in kept:
            assert kept["modificationTime"] == "*" or isinstance(kept["modificationTime"], int)
            kept["modificationTime"] = "*"
        if "slices" in kept:
            kept.pop("timeline")
        return {k: below(v, k) for k, v in kept.items()}
    if isinstance(value, list):
        return [below(v, name) for v in value]
    return value


def _all_of_it(value: Any) -> Any:
    return value


def _shared_timeline(value: Any) -> Any:
    """The timeline that the first of some file groups carries."""
    items = [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
    return next((v["timeline"] for v in items if v.get("timeline")), None)


def difference(request: dict[str, Any], reply: Reply, base: str, *, old: bool, version_6: bool) -> str:
    """Why a reply is not the recorded one; "" if it is."""
    if request["status"] >= 500 and reply.status < 500:
        return ""
    if reply.status != request["status"]:
        return f"status {reply.status}, recorded {request['status']}: {reply.text[:200]}"
    if reply.status != 200:
        return ""
    answer = json.loads(reply.text.replace(base, "{base}"))
    recorded = request["response"]
    if "://" in base:
        text = json.dumps(recorded).replace("file://{base}", "{base}").replace("file:{base}", "{base}")
        recorded = json.loads(text)
    if request["path"].endswith(_LOADED_SO_FAR) and not recorded:
        return ""
    for part in (_all_of_it, _shared_timeline):
        got, want = (_canonical(_comparable(part(v), old=old, version_6=version_6)) for v in (answer, recorded))
        if got != want:
            return f"answered {json.dumps(got)[:1500]}\n   recorded {json.dumps(want)[:1500]}"
    return ""


# What the timeline service knows of a table.


def served_files(path: Path, storage: Storage | None = None) -> list[str]:
    """The files of the newest slices, in the order of the text."""
    state = load_state(open_table(path, storage))
    slices: list[FileSlice] = [
        s for files in state.partitions.values() for group in files.live for s in group.slices[-1:]
    ]
    return sorted(repr(f.name) for one in slices for f in (one.base, *one.logs) if f is not None)


LATEST = f"{PREFIX}slices/partition/latest/"


def known(table: Path) -> dict[str, str]:
    """What a client sends whose view is made now."""
    instants = counted(Table.open(str(table)).load_timeline())
    return {"lastinstantts": instants[-1].requested_time, "timelinehash": digest(instants), "basepath": str(table)}


def take_back_last(table: Path) -> dict[str, bytes]:
    """Removes the newest delta commit's completed file; its name and content."""
    last = max((table / ".hoodie/timeline").glob("*.deltacommit"))
    content = last.read_bytes()
    last.unlink()
    return {str(last): content}


def put(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        Path(name).write_bytes(content)


# Tables that are as a page may show them.


def tables_of_every_health(folder: Path) -> list[Path]:
    """One late, one compacted, one broken, one broken since its plan cannot be read, and no table."""
    late, done = unzip_golden("v9_pending", folder / "1"), unzip_golden("v9_two_pending", folder / "2")
    run_all(Table.open(str(done)))
    broken = unzip_golden("v9_compacted_cleaned", folder / "3")
    max(broken.glob("*/*.parquet"), key=lambda p: p.name.rpartition("_")[2]).unlink()
    stuck = unzip_golden("v9_plain", folder / "4")
    scheduled = schedule_compaction(Table.open(str(stuck)), ProcessLock("stuck"), PLAN_NOW)
    plan = next(stuck.glob(f".hoodie/timeline/{scheduled.instant}.compaction.requested"))
    plan.write_bytes(b"")
    return [late, done, broken, stuck, folder / "none"]
