"""Wake-ups: what tells a daemon that a table may have changed, beside the doorbell in ZooKeeper.

    --wake-file PATH     lines that other processes add: the path of a table, or of a file on its timeline
    --wake-queue URL     a queue of SQS with S3's events, plain, through SNS or EventBridge (`boto3`, extra `s3`)
    --wake-metastore     the notifications of the Hive Metastore of --catalog

A wake-up is a hint: the timeline of a table is listed at once, not at the next poll. One that is lost, late or doubled
costs time or a request; one for no table of the fleet is ignored. A daemon looks at all its tables when it begins, so
a message may be deleted once the loop has it. One that is no event of S3 is left in its queue.

One daemon of a fleet gets a message of a queue: for a table of another one it rings the doorbell."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_plus, urlsplit

import msgspec

from phantombase.timeline.errors import PhantombaseError, StorageError, UsageError, reason_of
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.option import check_kinds, option, spelled_class
from phantombase.timeline.storage.object_url import S3, ObjectUrl
from phantombase.timeline.storage.open_storage import full_path, open_storage
from phantombase.timeline.storage.storage_options import Settings, StorageOptions

from .catalog import Catalog, CatalogListing, FleetTables
from .claims import find_table_id
from .zookeeper_claims import ZooKeeperClaims
from .zookeeper_session import ZooKeeperSession

if TYPE_CHECKING:  # few daemons need it
    from ..catalogs.metastore import Metastore

_log = get_logger()
_FILE_S, _METASTORE_S, _AGAIN_S = 0.5, 2.0, 10.0
_QUEUE_S = 20
"""How long SQS waits for a message before it answers: the longest that it takes."""
_ON_TIMELINE = re.compile(r"(?P<table>.+)/\.hoodie/(?:timeline/)?[0-9][^/]*", re.DOTALL)
_SCHEMES = (("s3", "s3a", "s3n"), ("gs", "gcs"))
_READ_MAX = 1 << 20


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class WakeOptions:
    """What wakes a daemon beside its polls."""

    file: Path | None = option(
        None,
        "look at a table at once when its path, or that of a file on its timeline, is added as a line to this file",
        flag="wake_file",
        metavar="FILE",
    )
    queue: str | None = option(
        None,
        "look at tables at once when S3's events say that their timelines have changed: the URL of a queue of SQS, "
        "for all daemons of a fleet",
        flag="wake_queue",
        metavar="URL",
    )
    metastore: bool = option(
        False,
        "look at tables at once when the Hive Metastore of --catalog notes a change of them",
        flag="wake_metastore",
    )

    def __post_init__(self) -> None:
        check_kinds(self)

    @property
    def given(self) -> tuple[str, ...]:
        """The options that are used."""
        used = {"--wake-file": self.file, "--wake-queue": self.queue, "--wake-metastore": self.metastore}
        return tuple(name for name, value in used.items() if value)


class Source(Protocol):
    """A source of wake-ups."""

    @property
    def shown(self) -> str:
        """For messages."""

    def hear(self, wake: Callable[[str], None], ended: threading.Event) -> None:
        """Waits for news for a while, and calls `wake` with the paths of tables. Errors of the tree."""


class Wakeable(Protocol):
    """A daemon, see `daemon.loop`."""

    fleet: FleetTables | None

    @property
    def paths(self) -> Collection[str]:
        """The tables that it serves now."""

    def wake(self, table: str) -> None:
        """Looks at one of them."""


@dataclass(slots=True, kw_only=True)
class Woken:
    """Where wake-ups go: to this daemon, or through ZooKeeper to the one that serves the table."""

    daemon: Wakeable
    session: ZooKeeperSession | None = None
    options: StorageOptions = StorageOptions()
    _ids: dict[str, str | None] = field(default_factory=dict)

    def __call__(self, path: str) -> None:
        """Wakes a table; never raises, since it is found at its next poll."""
        here, fleet = self.daemon.paths, self.daemon.fleet
        names = {} if fleet is None else fleet.names
        for one in _spellings(path):
            if one in here:
                self.daemon.wake(one)
            elif one in names and self.session is not None:
                self._ring(self.session, one)

    def _ring(self, session: ZooKeeperSession, path: str) -> None:
        try:
            if self._ids.get(path) is None:
                self._ids[path] = find_table_id(open_storage(path, self.options))
            if (name := self._ids[path]) is not None:
                ZooKeeperClaims(session, name, holder="").ring("")
        except PhantombaseError as error:
            _log.warning("fleet_not_woken", table=path, error=str(error))


def _spellings(path: str) -> Iterable[str]:
    """A path in all schemes of its store."""
    with suppress(UsageError):
        scheme, separator, rest = full_path(path).rstrip("/").partition("://")
        schemes = next((some for some in _SCHEMES if separator and scheme in some), (scheme,))
        return [f"{one}{separator}{rest}" for one in schemes]
    return ()


def table_of(path: str) -> str | None:
    """The table on whose timeline a file lies. None: another file, as one that daemons write while they work."""
    found = _ON_TIMELINE.fullmatch(path)
    return None if found is None else found["table"]


@contextmanager
def listening(
    options: WakeOptions,
    daemon: Wakeable,
    catalog: Catalog | None,
    session: ZooKeeperSession | None,
    given: StorageOptions,
) -> Iterator[None]:
    """Hears the sources, each in a thread, from entry to exit. An error is logged, and the source is tried again.
    UsageError: a source cannot be one for these tables, or its package is missing."""
    ended, woken = threading.Event(), Woken(daemon=daemon, session=session, options=given)
    for source in _sources(options, daemon, catalog, given):
        threading.Thread(target=_listen, args=(source, woken, ended), name="wake-ups", daemon=True).start()
    try:
        yield
    finally:
        ended.set()  # a thread that waits for an answer is not waited for


def _listen(source: Source, wake: Callable[[str], None], ended: threading.Event) -> None:
    trouble = ""
    while not ended.is_set():
        try:
            source.hear(wake, ended)
            trouble = ""
        except Exception as error:
            if not isinstance(error, PhantombaseError):
                _log.exception("internal_error")
            elif str(error) != trouble:
                _log.warning("no_wake_ups", source=source.shown, error=str(error))
            trouble = str(error)
            ended.wait(_AGAIN_S)


def _sources(
    options: WakeOptions, daemon: Wakeable, catalog: Catalog | None, given: StorageOptions
) -> Iterator[Source]:
    if options.file is not None:
        yield WakeFile(options.file)
    if options.queue is not None:
        yield WakeQueue(options.queue, given.at(ObjectUrl(cloud=S3, bucket="", prefix="")))
    if options.metastore:
        from ..catalogs.metastore import Metastore

        store = catalog.listing.store if catalog is not None and isinstance(catalog.listing, CatalogListing) else None
        if not isinstance(store, Metastore):
            raise UsageError(
                "--wake-metastore is for the tables of a Hive Metastore",
                expected="--catalog hive:HOST:PORT",
                todo="Add it, or leave --wake-metastore out.",
            )
        yield WakeMetastore(store, daemon)


class WakeFile:
    """Lines that are added to a file while it is heard. It may be missing, cut off or replaced at any time."""

    def __init__(self, path: Path) -> None:
        self.shown = str(path)
        self._path = path
        self._file, self._at = self._state()

    def _state(self) -> tuple[int, int]:
        """The number of the file, and its size."""
        with self._readable():
            try:
                found = self._path.stat()
            except FileNotFoundError:
                return 0, 0
        return found.st_ino, found.st_size

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = "the file for wake-ups cannot be read"
            raise StorageError(what, path=self.shown, found=reason_of(error)) from error

    def hear(self, wake: Callable[[str], None], ended: threading.Event) -> None:
        """See `Source`."""
        for line in dict.fromkeys(self._lines()):
            if line:
                wake(table_of(line) or line)
        ended.wait(_FILE_S)

    def _lines(self) -> list[str]:
        """Whole lines. One that is longer than is read at once is left out, in parts."""
        file, size = self._state()
        if file != self._file or size < self._at:
            self._file, self._at = file, 0
        if size <= self._at:
            return []
        with self._readable(), self._path.open("rb") as opened:
            opened.seek(self._at)
            data = opened.read(_READ_MAX)
        whole = data.rpartition(b"\n")[0]
        self._at += len(whole) + 1 if b"\n" in data else len(data) if len(data) == _READ_MAX else 0
        return [line.decode("utf-8", "surrogateescape").strip() for line in whole.split(b"\n")]


class _Named(msgspec.Struct):
    name: str


class _Object(msgspec.Struct):
    key: str


class _Change(msgspec.Struct):
    bucket: _Named
    object: _Object

    def table(self, key: str) -> str | None:
        return table_of(f"s3://{self.bucket.name}/{key}")


class _Record(msgspec.Struct):
    s3: _Change


class _Message(msgspec.Struct):
    """S3's own form, `detail` of EventBridge, `Message` of SNS, which holds one of the others."""

    records: list[_Record] = msgspec.field(name="Records", default_factory=list)
    detail: _Change | None = None
    message: str | None = msgspec.field(name="Message", default=None)
    event: str | None = msgspec.field(name="Event", default=None)


def tables_in(body: str, *, inner: bool = False) -> frozenset[str] | None:
    """The tables whose timelines have changed by a message. None: it is no event of S3 (pure)."""
    try:
        found = msgspec.json.decode(body, type=_Message)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if found.message is not None and not inner:
        return tables_in(found.message, inner=True)
    if not found.records and found.detail is None and found.event != "s3:TestEvent":
        return None
    changed = [one.s3.table(unquote_plus(one.s3.object.key)) for one in found.records]
    changed += [found.detail.table(found.detail.object.key)] if found.detail is not None else []
    return frozenset(one for one in changed if one is not None)


class WakeQueue:
    """A queue of SQS. A message is deleted after its tables are woken."""

    def __init__(self, url: str, settings: Settings) -> None:
        """UsageError: not the URL of a queue, or boto3 is missing."""
        from phantombase.timeline.storage.object_clients import aws_client

        self.shown, where = url, urlsplit(url)
        if where.scheme not in ("http", "https") or where.path.count("/") < 2:
            expected = "the URL of a queue, like https://sqs.eu-central-1.amazonaws.com/123456789012/lake"
            raise UsageError("not a queue of SQS", expected=expected, found=url)
        region = re.fullmatch(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?", where.hostname or "")
        try:
            endpoint = "" if region else f"{where.scheme}://{where.netloc}"
            self._client = aws_client("sqs", settings, region[1] if region else "", endpoint)
        except ImportError as error:
            raise UsageError(
                "a queue of SQS needs the package boto3",
                todo="pip install 'phantombase[s3]' adds it: AWS Glue, SQS, and what S3 asks of boto3.",
            ) from error
        self._strange = 0.0

    def hear(self, wake: Callable[[str], None], ended: threading.Event) -> None:
        """See `Source`."""
        import botocore.exceptions as botocore

        try:
            self._hear(wake)
        except (botocore.ClientError, botocore.BotoCoreError) as error:
            raise StorageError(
                "the queue of SQS did not answer, or refused",
                path=self.shown,
                found=str(error),
                todo="Check its URL and the rights of these credentials (sqs:ReceiveMessage, sqs:DeleteMessage). "
                "Tables are looked at every --poll-interval all the same.",
            ) from error

    def _hear(self, wake: Callable[[str], None]) -> None:
        answer = self._client.receive_message(QueueUrl=self.shown, MaxNumberOfMessages=10, WaitTimeSeconds=_QUEUE_S)
        done, woken = list[dict[str, str]](), set[str]()
        for number, message in enumerate(answer.get("Messages", ())):
            if (found := tables_in(message["Body"])) is None:
                self._note_strange(message)
                continue
            woken |= found
            done.append({"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]})
        for table in sorted(woken):
            wake(table)
        if done:
            self._client.delete_message_batch(QueueUrl=self.shown, Entries=done)

    def _note_strange(self, message: Mapping[str, Any]) -> None:
        """Says so, but not of each: it stays in the queue, which gives it again."""
        if time.monotonic() >= self._strange:
            self._strange = time.monotonic() + 60.0
            _log.warning(
                "no_event_of_s3", queue=self.shown, message=message.get("MessageId"), text=message["Body"][:200]
            )


class WakeMetastore:
    """The notifications of a Hive Metastore. Hudi's sync changes a table there after a write."""

    def __init__(self, store: Metastore, daemon: Wakeable) -> None:
        self.shown = store.shown
        self._store, self._daemon, self._last = store, daemon, -1

    def hear(self, wake: Callable[[str], None], ended: threading.Event) -> None:
        """See `Source`."""
        with self._store.calls() as calls:
            self._last, changed = calls.changed(self._last)
        fleet = self._daemon.fleet
        if changed and fleet is not None:
            names = {f"{database}/{base}" for database, table in changed for base in _bases(table)}
            for path in [path for path, name in fleet.names.items() if name in names]:
                wake(path)
        ended.wait(_METASTORE_S)


def _bases(table: str) -> Iterable[str]:
    """The names under which a listing may have a table: Hudi's sync registers it with endings, too."""
    return {table, table.removesuffix("_ro"), table.removesuffix("_rt")}
