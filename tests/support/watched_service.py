"""The service in a thread or a process, with a record of what it answered; its answers may be spoilt."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import uvicorn

from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.asgi import Receive, Scope, Send
from phantombase.timeline.service.loading import load_state
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.service.table_state import ServedState
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileGroup, GroupKey

SLOW_S = 3.0


class Spoilt(Enum):
    """What becomes of a request."""

    ERROR = "an error of the server"
    CUT = "the connection ends in the middle of the answer"
    SLOW = "it is answered late"
    GONE = "the service ends, and is not there any more"


@dataclass(slots=True)
class Watched:
    """An ASGI application around the service. `answered`: (path, status) in order. `spoil` gets the number of each
    request, from 0. `end`: ends the service."""

    app: ServiceApp
    port: int = 0
    answered: list[tuple[str, int]] = field(default_factory=list)
    spoil: Callable[[int], Spoilt | None] = lambda number: None
    spoilt: int = 0
    asked: int = 0
    end: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.answered.append((scope["path"], message["status"]))
            await send(message)

        kind, self.asked = self.spoil(self.asked), self.asked + 1
        self.spoilt += kind is not None
        if kind is Spoilt.SLOW:
            await asyncio.sleep(SLOW_S)
        elif kind is Spoilt.GONE:
            self.end()
        elif kind is not None:
            cut = kind is Spoilt.CUT
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % (99 if cut else 2))]
            await send({"type": "http.response.start", "status": 200 if cut else 500, "headers": headers})
            await send({"type": "http.response.body", "body": b"[]", "more_body": cut})
            return
        await self.app(scope, receive, watched)


@contextmanager
def watched_service(*paths: object) -> Iterator[Watched]:
    """Serves tables, with markers."""
    watched = Watched(ServiceApp(ServedTables(map(str, paths)), 64 << 20, markers=True))
    config = uvicorn.Config(watched, port=0, http="h11", lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    watched.end = partial(setattr, server, "should_exit", True)
    watched.port = socket.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield watched
    finally:
        watched.end()
        thread.join(30)


# A table whose state is kept as the timeline service keeps it, compared with the project's view after each step.


class FollowedTable:
    """See the module. `kept`: how many partitions later states took over from the one before."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._state: ServedState | None = None
        self.kept = 0

    def look(self) -> None:
        """Loads the next state, and the same anew; they must be equal."""
        before = self._state
        self._state = state = load_state(Table.open(self._path), before)
        if before is not None:
            self.kept += sum(before.partitions.get(p) is files for p, files in state.partitions.items())
        view = Table.open(self._path).load_view()
        unsure = not state.config.layout.has_completion_times and bool(state.timeline.pending_delta_commits)
        named = _named(self._path, state) if unsure else None
        assert _groups(state, named) == _seen(view.groups, named)
        assert state.timeline.instants == view.timeline.instants
        facts = [f.facts for f in state.partitions.values()]
        assert {k: v for f in facts for k, v in f.pending_plans.items()} == view.facts.pending_plans
        listed = {k: v for k, v in view.facts.replaced.items() if k[0] in state.partitions}
        assert {k: v for f in facts for k, v in f.replaced.items()} == listed
        assert _rest(state, named) == _rest(load_state(Table.open(self._path)), named)


Named: TypeAlias = frozenset[str] | None
"""Paths of log files that count; None: all. On version 6 their names do not show which are of pending writes."""


def _named(path: str, state: ServedState) -> Named:
    table = Table.open(path)
    return frozenset().union(*(table.commit_metadata(i).named_files for i in state.timeline.completed))


def _groups(state: ServedState, named: Named) -> Mapping[GroupKey, FileGroup]:
    return _seen((g for files in state.partitions.values() for g in files.groups), named)


def _seen(groups: Iterable[FileGroup], named: Named) -> dict[GroupKey, FileGroup]:
    """What readers see: a pending write may have opened other groups."""
    return {g.key: _without(g, named) for g in groups if g.slices}


def _without(group: FileGroup, named: Named) -> FileGroup:
    if named is None:
        return group
    kept = (replace(s, logs=tuple(log for log in s.logs if log.path in named)) for s in group.slices)
    return replace(group, slices=tuple(kept))


def _rest(state: ServedState, named: Named) -> list[Any]:
    """What else answers are made of, of the files that readers see."""
    seen = _groups(state, named).values()
    files = sorted((d.path, state.modified[g.partition][str(d.name)]) for g in seen for s in g.slices for d in s.files)
    partitions = [sorted(state.partitions), files]
    return [state.config, state.digests, state.plans, state.log_plans, state.clusterings, partitions]


# `timeline serve` as a process of its own.


@contextmanager
def serving(*arguments: object) -> Iterator[str]:
    """Its address. It must end by SIGTERM without an error."""
    command = [sys.executable, "-m", "phantombase.timeline.cli.main", "serve", "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.rpartition(" ")[2].strip()
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
