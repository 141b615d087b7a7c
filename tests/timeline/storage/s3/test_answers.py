"""A store that misbehaves: each kind of call, each request spoilt in each way. What comes out is right, or one of our
errors; never other bytes, and never a part for the whole."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

import pytest

from phantombase.timeline.clocks import Retry
from phantombase.timeline.errors import MissingFileError, StorageError, UnsupportedError
from phantombase.timeline.storage import object_clients, object_lease, object_store
from phantombase.timeline.storage.contract import open_listed
from phantombase.timeline.storage.object_clients import forget
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.staged_file import place_staged, staged_output
from tests.support.compaction_steps import serving
from tests.support.selection import ALL, deep
from tests.support.servers import s3_server
from tests.support.servers.fault_proxy import OF_ANSWERS, OF_CHANGES, Fault, FaultProxy, Faults, Kind, Request, of_kind
from tests.support.servers.s3_server import Asked, S3Server

DATA = bytes(range(256)) * 40
OTHER = b"another"
LARGE = DATA * 600
NAMES = [f"n{i}" for i in range(7)]


@pytest.fixture
def storage(faulty_s3: FaultProxy, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    """Behind the proxy, by a client that asks again at once, and for a short time."""
    backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}
    monkeypatch.setitem(object_clients._PATIENCE, "backoff", backoff)
    monkeypatch.setitem(object_clients._PATIENCE, "retry_timeout", timedelta(seconds=0.03))
    for module, name in ((object_store, "PUT_AGAIN"), (object_clients, "READ_AGAIN"), (object_lease, "READ_AGAIN")):
        monkeypatch.setattr(module, name, Retry((0.0,) * 3))
    monkeypatch.setattr(object_clients, "_WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(object_clients, "_END_BYTES", 1000)
    found = ObjectStorage(f"s3://{s3.new_bucket()}/t")
    for name in NAMES:
        found.overwrite(f"d/{name}", DATA)
    found.verify()
    return found


# What a call must give: the right answer, or an error of the storage.


def get(storage: ObjectStorage) -> None:
    assert storage.read("d/n0") == DATA


def get_whole(storage: ObjectStorage) -> None:
    with open_listed(storage, "d/n0", len(DATA)) as file:
        assert file.read() == DATA


def get_ranges(storage: ObjectStorage) -> None:
    with open_listed(storage, "d/n0", len(DATA), whole=False) as file:
        assert bytes(file.read_at(300, 700)) == DATA[700:1000]
        assert bytes(file.read_at(900, len(DATA) - 900)) == DATA[-900:]


def head(storage: ObjectStorage) -> None:
    found = storage.find("d/n0")
    assert found is not None
    assert found.size == len(DATA)


def names(storage: ObjectStorage) -> None:
    assert [entry.name for entry in storage.list("d")] == NAMES
    assert [path for path, _ in storage.list_below("d")] == NAMES


def put_if_absent(storage: ObjectStorage) -> None:
    assert storage.put_if_absent("x", DATA)


def put_on_another(storage: ObjectStorage) -> None:
    assert not storage.put_if_absent("x", DATA)


def place(storage: ObjectStorage) -> None:
    assert storage.place("d/n3", "x")


def place_on_another(storage: ObjectStorage) -> None:
    assert not storage.place("d/n3", "x")


def upload(storage: ObjectStorage) -> None:
    with staged_output(storage, "x") as file:
        file.writelines((LARGE[: len(LARGE) // 2], LARGE[len(LARGE) // 2 :]))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call, and the content of `x` before and after it; where the call fails it is one of the two."""

    call: Callable[[ObjectStorage], None]
    before: bytes | None = None
    after: bytes | None = None

    def run(self, storage: ObjectStorage, proxy: FaultProxy, faults: Faults) -> bool:
        """Whether it ended well."""
        if self.before is not None:
            storage.overwrite("x", self.before)
        elif self.after is not None:
            storage.delete("x")
        proxy.restart(faults)
        try:
            self.call(storage)
            ended_well = True
        except StorageError:
            ended_well = False
        finally:
            proxy.restart()
        if self.before != self.after or self.before is not None:
            found = None
            with suppress(MissingFileError):
                found = storage.read("x")
            assert found == self.after or (not ended_well and found == self.before)
        return ended_well


CASES = {
    "get": Case(call=get),
    "get whole": Case(call=get_whole),
    "get ranges": Case(call=get_ranges),
    "head": Case(call=head),
    "list": Case(call=names),
    "put if absent": Case(call=put_if_absent, after=DATA),
    "put on another": Case(call=put_on_another, before=OTHER, after=OTHER),
    "put": Case(call=lambda storage: storage.overwrite("x", DATA), before=OTHER, after=DATA),
    "delete": Case(call=lambda storage: storage.delete("x"), before=OTHER),
    "delete all": Case(call=lambda storage: storage.delete_all(["x", "y"]), before=OTHER),
    "place": Case(call=place, after=DATA),
    "place on another": Case(call=place_on_another, before=OTHER, after=OTHER),
    "upload": Case(call=upload, after=LARGE),
}


def first_of_each_kind(fault: Fault) -> Faults:
    """The first request of each kind: those that follow are answered."""
    seen: set[Kind] = set()

    def spoil(asked: Request) -> Fault:
        if asked.kind in seen or not meets(fault, asked):
            return Fault.NONE
        seen.add(asked.kind)
        return fault

    return spoil


def all_of_them(fault: Fault) -> Faults:
    return lambda asked: fault if meets(fault, asked) else Fault.NONE


def meets(fault: Fault, asked: Request) -> bool:
    """Whether a request can be spoilt so. A store that says of a plain put that it is done, and is not, is none."""
    if fault is Fault.GONE:
        return False
    if fault is Fault.FAILED_200:
        return asked.kind in (Kind.PART, Kind.COMPLETE)
    return asked.changes or fault not in OF_CHANGES


FAULTS = (*(f for f in OF_CHANGES if f is not Fault.DELAYED), *OF_ANSWERS, Fault.FAILED_200)


@pytest.mark.parametrize("name", [deep(n) if n == "upload" else n for n in CASES])
def test_a_call_whose_requests_are_spoilt(name: str, storage: ObjectStorage, faulty_s3: FaultProxy) -> None:
    """Once each, or all of them. A usual run takes each fault in some calls, the deep one in all."""
    sample = list(product(FAULTS, (first_of_each_kind, all_of_them)))
    for fault, spoil in sample if ALL else sample[list(CASES).index(name) :: 11]:
        try:
            CASES[name].run(storage, faulty_s3, spoil(fault))
        except BaseException as error:
            error.add_note(f"{fault.name}, {spoil.__name__}")
            raise


def test_a_tag_that_is_no_sum_is_found_once(
    storage: ObjectStorage, faulty_s3: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an object that is encrypted with a key of KMS: the store's word on its size decides, and later reads ask
    nothing more."""
    monkeypatch.setattr(object_lease, "is_of", lambda tag, content: False)
    faulty_s3.restart()
    assert storage.read("d/n0") == storage.read("d/n1") == DATA
    assert [asked.kind for asked in faulty_s3.asked] == [Kind.GET, Kind.HEAD] * 2 + [Kind.GET]


def test_a_copy_that_ends_after_its_answer(storage: ObjectStorage, faulty_s3: FaultProxy) -> None:
    """A store that begins so is refused; one that does it later leaves an error, and the next run finds the file."""
    faulty_s3.restart(of_kind(Kind.COMPLETE, Fault.LATE))
    with pytest.raises(StorageError, match=r"differs from the staged one.*found nothing"):
        place_staged(storage, "d/n0", "late", len(DATA))
    while storage.find("late") is None:
        time.sleep(0.01)
    place_staged(storage, "d/n0", "late", len(DATA))
    forget()
    with pytest.raises(UnsupportedError, match="has made a copy when it is answered"):
        ObjectStorage(storage.base_path).verify()


def test_credentials_that_expire_are_renewed(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server gives a new key for each, and the store refuses those that were used before."""
    used: list[str] = []

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ends = (datetime.now(UTC) + timedelta(seconds=10)).isoformat()
            key = {"AccessKeyId": f"key{time.monotonic_ns()}", "SecretAccessKey": "s", "Token": "t", "Expiration": ends}
            data = json.dumps(key).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    def refused(asked: Asked) -> s3_server.Fault:
        key = asked.headers["authorization"].partition("Credential=")[2].partition("/")[0]
        used.append(key)
        return s3_server.Fault.SLOW_DOWN if len(used) == 1 else s3_server.Fault.NONE

    keys = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    with serving(keys):
        (tmp_path / "token").write_text("token")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{keys.server_port}/")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        storage = ObjectStorage(f"s3://{s3.new_bucket()}/t")
        s3.faults = refused
        assert storage.find("x") is None
        while len(set(used)) < 2:  # a new key is kept for a tenth of a second
            assert storage.find("y") is None
