"""Receives ordered actions over HTTP, and runs each as the command that the page shows, in a process of its own.

POST /t/<name>/actions/<order>             a form of a page; the answer is the page
POST /api/tables/<name>/actions/<order>    with `Authorization: Bearer`; `instant` in the query string or a form

One action at a time runs on a table. A person must have logged in, and this service must have made the form for that
login, so that no page of another site can send it (`Access.order_refusal`)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from ..clocks import clock_ms
from ..errors import UsageError, reason_of
from ..event_log import get_logger
from ..service.asgi import (
    Access,
    Receive,
    Refused,
    Scope,
    Send,
    encoded,
    form_of,
    headers_of,
    own_parameters,
    send_bytes,
    send_text,
)
from ..service.served_tables import ServedTable
from ..storage.storage_options import Given, StorageOptions
from ..terminal.text_table import Row
from .orders import PROGRAM, CommandSettings, Order, shown
from .table_rows import TablePlace

_KEPT = 10
_OUTPUT_BYTES = 8 << 10
_ENOUGH_S = 900.0
_END_S = 5.0
_log = get_logger()


class BusyError(Exception):
    """Another order on this table is still running."""


@dataclass(slots=True, kw_only=True)
class Ordered:
    """An order and its outcome. `exit_code` None: it is running; -1: it timed out and was ended."""

    order: Order
    command: str
    by: str
    began_s: float
    took_s: float | None = None
    exit_code: int | None = None
    output: str = ""

    def row(self) -> Row:
        return {
            "action": self.order.name.value,
            "instant": self.order.instant,
            "command": self.command,
            "by": self.by,
            "began": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.began_s)),
            "took_s": self.took_s,
            "exit_code": self.exit_code,
            "output": self.output,
        }


class OrderRunner:
    """Runs commands of the program `command`. After one died, the next continues from what it left."""

    def __init__(self, command: Sequence[str], storage_options: Given = None) -> None:
        self._command = tuple(command)
        self._more, self._environment = _handed_on(storage_options)
        self._ordered: dict[str, deque[Ordered]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def of(self, path: str) -> list[Row]:
        """The last orders on a table since the start of the service, newest first."""
        return [one.row() for one in reversed(self._ordered.get(path, ()))]

    async def run(self, order: Order, path: str, words: Sequence[str], by: str, wait_s: float) -> Ordered:
        """Starts a command, and waits at most `wait_s` for its end. BusyError: one is running on this table."""
        if path in self._running:
            raise BusyError(f"{self._ordered[path][-1].command} has not ended yet")
        one = Ordered(order=order, command=shown(words), by=by, began_s=clock_ms() / 1000)
        self._ordered.setdefault(path, deque(maxlen=_KEPT)).append(one)
        _log.info(
            "action ordered", table=path, action=order.name.value, instant=order.instant, by=by, command=one.command
        )
        task = self._running[path] = asyncio.create_task(self._run(one, path, words))
        await asyncio.wait([task], timeout=wait_s)
        return one

    async def _run(self, one: Ordered, path: str, words: Sequence[str]) -> None:
        began = time.monotonic()
        try:
            one.exit_code, one.output = await self._process([*words, *self._more])
        except OSError as error:
            one.exit_code, one.output = -1, reason_of(error)
        finally:
            one.took_s = round(time.monotonic() - began, 3)
            del self._running[path]
            _log.info("action ended", table=path, action=one.order.name.value, instant=one.order.instant, by=one.by,
                      exit_code=one.exit_code, took_s=one.took_s, output=one.output)  # fmt: skip

    async def _process(self, words: Sequence[str]) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *self._command, *words, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=self._environment
        )
        try:
            async with asyncio.timeout(_ENOUGH_S):
                output, _ = await process.communicate()
        except (TimeoutError, asyncio.CancelledError) as error:
            await _end(process)
            if isinstance(error, asyncio.CancelledError):
                raise
            return -1, f"it did not end in {_ENOUGH_S:g} s, and was ended"
        return process.returncode or 0, output[-_OUTPUT_BYTES:].decode("utf-8", "replace").strip()


def _handed_on(storage_options: Given) -> tuple[list[str], dict[str, str]]:
    """Words and environment that give a command the options of the storage: no secret is a word."""
    options = StorageOptions.of(storage_options)
    pairs = (("--storage-option", f"{name}={value}") for name, value in options.without_secrets)
    # Rich breaks lines at the width of a terminal; here is no terminal.
    return [word for pair in pairs for word in pair], {**os.environ, **options.secret_variables, "COLUMNS": "500"}


_FLEET_S, _FLEET_LATEST_S = 10.0, 300.0
_FIRST_S = 20.0
"""How long pages wait for the first answer; later ones are waited for by none."""
_NOT_YET = "`status` has not answered yet"


class StatusFleet:
    """The fleet that serves the tables below a root, as `compactor-daemon status` has known it some seconds ago, or
    as long ago as that takes. A service without a daemon shows it. `words`: options of that command, such as `--root`
    and `--zookeeper`. Threads that answer writers of Hudi, too, do not wait while ZooKeeper is silent."""

    def __init__(self, command: Sequence[str], words: Sequence[str], storage_options: Given = None) -> None:
        more, self._environment = _handed_on(storage_options)
        self._command = [*command, "status", *words, *more, "--brief", "--json"]
        self._asking, self._answered = threading.Lock(), threading.Event()
        self._asked_s = -_FLEET_S
        self._found: Row = {"zookeeper": None, "problem": _NOT_YET, "daemons": [], "pools": []}
        self._places: dict[str, TablePlace] = {}

    def placed(self, path: str) -> TablePlace:
        """See `FleetInfo`."""
        self._ask()
        return self._places.get(path, TablePlace(pool=None, served_by=(), own=True))

    def fleet(self) -> Row:
        """`zookeeper`, `daemons`, `pools`, `problem`: see `FleetInfo`."""
        self._ask()
        return self._found

    def _ask(self) -> None:
        if time.monotonic() - self._asked_s >= _FLEET_S and self._asking.acquire(blocking=False):
            threading.Thread(target=self._run, name="fleet", daemon=True).start()
        if not self._answered.wait(_FIRST_S):
            self._answered.set()

    def _run(self) -> None:
        """One question; holds `_asking`, and gives it back."""
        run = partial(subprocess.run, capture_output=True, check=False, timeout=_FLEET_LATEST_S)
        try:
            self._read(json.loads(run(self._command, stdin=subprocess.DEVNULL, env=self._environment).stdout))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._found = {**self._found, "problem": f"`status` did not answer: {reason_of(error)}"}
        finally:
            self._asked_s = time.monotonic()
            self._answered.set()
            self._asking.release()

    def _read(self, data: Row) -> None:
        daemons, problem = data.get("daemons") or [], data.get("daemons_problem") or data.get("error")
        names = ("who", "host", "pid", "tables", "of_tables", "troubled", "pages")
        self._found = {
            "zookeeper": problem is None,
            "problem": problem,
            "daemons": [{**{name: one.get(name) for name in names}, "running": []} for one in daemons],
            "pools": [{"who": one.get("who"), **use} for one in daemons for use in one.get("pools", ())],
        }
        self._places = (
            self._places
            if "tables" not in data
            else {
                row["table"]: TablePlace(
                    pool=row["pool"], served_by=tuple(map(str, row.get("served_by", ()))), own=True
                )
                for row in data["tables"]
            }
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def installed(option: str = "--allow-actions") -> tuple[str, ...]:
    """The program, in this interpreter's folder or on the path. UsageError: it is not installed."""
    neighbour = Path(sys.executable).with_name(PROGRAM)
    found = str(neighbour) if neighbour.is_file() else shutil.which(PROGRAM)
    if found is None:
        raise UsageError(
            f"{option} needs {PROGRAM}",
            found="it is not installed with this program",
            todo="Install the package phantombase where this program runs.",
        )
    return (found,)


PROOF = "proof"
"""The field of a form that shows which login it was made for."""
_WAIT_S = 20.0
_JSON = b"application/json"


class ActionApp:
    """Takes orders on tables. `settings`: the options of the commands. UsageError: no token, so that everybody could
    order; or no lock, so that a plan may lose the rows of a write."""

    def __init__(self, access: Access, runner: OrderRunner, settings: CommandSettings) -> None:
        if access.token is None:
            raise UsageError("--allow-actions needs a token", todo="Give --token-file.")
        if settings.lock is None and not settings.sole_writer:
            raise UsageError(
                "--allow-actions needs to know which other processes write to the tables",
                expected="--lock, if all writers and schedulers share that lock, or --sole-writer",
            )
        self._access, self._runner, self._settings = access, runner, settings

    def of(self, table: ServedTable) -> list[Row]:
        return self._runner.of(table.path)

    def proof(self, scope: Scope) -> str:
        """The proof for the forms of a page; "" for a program."""
        return self._access.proof(headers_of(scope))

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, parts: Sequence[str], named: Callable[[str], ServedTable]
    ) -> None:
        """`parts`: of the path. `named`: finds a table. Refused, UsageError, PhantombaseError: nothing was ordered."""
        match parts:
            case ["t", name, "actions", order]:
                own_parameters(scope["query_string"])
                given, is_page = own_parameters(await form_of(receive), "instant", PROOF), True
            case ["api", "tables", name, "actions", order]:
                both = b"&".join((await form_of(receive), scope["query_string"]))
                given, is_page = own_parameters(both, "instant"), False
            case _:
                raise Refused(404, "Not found")
        if reason := self._access.order_refusal(headers_of(scope), given.get(PROOF, ""), clock_ms() / 1000):
            raise Refused(403, reason)
        done = await self._run(Order.parse(order, given.get("instant") or None), named(name), _who(scope))
        if is_page:
            location = f"/t/{quote(name, safe='', errors='surrogateescape')}#done"
            await send_text(send, 303, "ordered", [(b"location", location.encode())])
        else:
            status = 202 if done["exit_code"] is None else 200
            await send_bytes(send, encoded(done).plain(), _JSON, status=status)

    async def _run(self, order: Order, table: ServedTable, by: str) -> Row:
        name, pending = await asyncio.to_thread(_now, table)
        if order.instant is not None and order.instant not in pending:
            raise Refused(409, f"compaction {order.instant} is not pending (any more)")
        words = order.words(table.path, name, self._settings)
        try:
            return (await self._runner.run(order, table.path, words, by, _WAIT_S)).row()
        except BusyError as error:
            raise Refused(409, str(error)) from error


def _now(table: ServedTable) -> tuple[str, list[str]]:
    """A table's name and its pending compactions, even if its files cannot be read."""
    opened = table.opened()
    return opened.config.name, [i.requested_time for i in opened.load_timeline().pending_compactions]


def _who(scope: Scope) -> str:
    client = scope["client"]
    way = "token" if b"authorization" in headers_of(scope) else "login"
    return f"{client[0] if client else 'unknown'} ({way})"
