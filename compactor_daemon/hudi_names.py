"""Every configuration name of Apache Hudi 0.15.0 and 1.2.0, and what it means here: `hudi_names.tsv`; and its names for
the table lock, `hoodie.write.lock.*`, and the mode of concurrency, as `--lock` names it.

The names, defaults and alternative names are facts of those releases (`ConfigProperty` fields of the Spark bundle);
what a name means here is stated with it, once. A name set to one of Hudi's defaults has the same effect as no setting.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.locks.table_lock import BASE_PATH_HASH, STORAGE
from phantombase.timeline.option import decimal_number, whole_number

_FILE = Path(__file__).with_name("hudi_names.tsv")
T = TypeVar("T")
Known: TypeAlias = Mapping[str, tuple[str, Callable[[str], Any]]]
"""By Hudi's name: the field that it sets, and the function that parses its value."""


class NameKind(Enum):
    """What a name does here. SET: it sets an option or describes a table. ONLY: another value than those listed would
    give other rows, files or locks than phantombase's, so it is refused. WISH: work besides the write that phantombase
    does not do; rows are the same. CLIENT: how Hudi's own client does its work."""

    SET = "set"
    ONLY = "only"
    WISH = "wish"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class HudiName:
    """`agreeing`: values that agree with what is done here, Hudi's defaults first. `why`: its meaning."""

    name: str
    kind: NameKind
    agreeing: tuple[str, ...]
    alternatives: tuple[str, ...]
    why: str

    def agrees(self, text: str) -> bool:
        """Whether the value is one of `agreeing`; numbers by value, words without case."""
        return _plain(text) in map(_plain, self.agreeing)


def same_value(one: str, other: str) -> bool:
    """Whether two texts are one value: numbers by value, words without case."""
    return _plain(one) == _plain(other)


def _plain(text: str) -> str | Decimal:
    word = text.strip()
    try:
        decimal_number(word)
    except ValueError:
        return word.lower()
    return Decimal(word)


@cache
def hudi_names() -> Mapping[str, HudiName]:
    """By name, and by each alternative name."""
    found: dict[str, HudiName] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, kind, agreeing, alternatives, why = line.split("\t")
        others = tuple(alternatives.split())
        one = HudiName(
            name=name, kind=NameKind(kind), agreeing=tuple(json.loads(agreeing)), alternatives=others, why=why
        )
        found |= dict.fromkeys((name, *others), one)
    return found


_FAMILIES = (
    "auto.offset.reset",
    "basic.auth.",
    "bootstrap.servers",
    "enable.auto.commit",
    "group.id",
    "hoodie.aws.",
    "hoodie.bloom.",
    "hoodie.bulkinsert.",
    "hoodie.clustering.",
    "hoodie.datasource.hive_sync.",
    "hoodie.datasource.meta.sync.",
    "hoodie.datasource.query.",
    "hoodie.datasource.read.",
    "hoodie.deltastreamer.",
    "hoodie.embed.timeline.",
    "hoodie.filesystem.",
    "hoodie.gcp.",
    "hoodie.memory.",
    "hoodie.meta.sync.",
    "hoodie.metadata.",
    "hoodie.metrics.",
    "hoodie.spark.sql.",
    "hoodie.sql.",
    "hoodie.streamer.",
    "key.deserializer",
    "max.poll.",
    "metadata.broker.list",
    "sasl.",
    "schema.registry.",
    "security.protocol",
    "session.timeout.ms",
    "ssl.",
    "value.deserializer",
    "zookeeper.connect",
)
"""Prefixes of names: of Hudi's client and its tools, and of the sources from which its streamer reads. In no release
has a setting of rows, rollbacks or locks such a name."""
_KEY, _ORDERING = "hoodie.datasource.write.recordkey.field", "hoodie.datasource.write.precombine.field"
_TYPE, _OPERATION = "hoodie.datasource.write.table.type", "hoodie.datasource.write.operation"
_ELSEWHERE = {
    "primaryKey": _KEY,
    "preCombineField": _ORDERING,
    "preCombineKey": _ORDERING,
    "type": _TYPE,
    "table.type": _TYPE,
    "index.type": "hoodie.index.type",
    "write.operation": _OPERATION,
    "write.precombine.field": _ORDERING,
    "archive.min_commits": "hoodie.keep.min.commits",
    "archive.max_commits": "hoodie.keep.max.commits",
    "clean.retain_commits": "hoodie.clean.commits.retained",
}
"""Names of SQL and Flink, which Hudi's Spark writers do not read, and what its own names are."""


def is_of_a_family(name: str) -> bool:
    """Whether a name of another release belongs to Hudi's client or tools only, and is not misspelt."""
    return name.startswith(_FAMILIES) and nearest(name, hudi_names()) is None


def nearest(name: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.88)
    return near[0] if near else None


def meant(name: str, known: Iterable[str]) -> str | None:
    """What to do about a name that is not known, if one is near."""
    near = _ELSEWHERE.get(name) or nearest(name.rpartition(" ")[2], known)  # "hoodie-conf NAME": of a command line
    return f"Did you mean {near}?" if near else None


def setting(name: str) -> str:
    """The setting of a name, which may be one of its alternative names."""
    one = hudi_names().get(name)
    return name if one is None else one.name


def texts(conf: Mapping[str, Any]) -> dict[str, str]:
    """Values as Hudi reads them, as text; of an enum its value. UsageError: another type, or a name that is no text."""
    if not isinstance(conf, Mapping):
        raise UsageError("not a dictionary of configurations", expected="{name: value}", found=repr(conf))
    if any(not isinstance(name, str) for name in conf):
        raise UsageError(
            "the name of a configuration is a text",
            found=", ".join(map(repr, conf)),
            expected="names and values that are texts",
        )
    return {name: _text(name, value.value if isinstance(value, Enum) else value) for name, value in conf.items()}


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        number = float(value)
        return str(int(number)) if number.is_integer() else str(number)
    raise UsageError(
        "not a value of a configuration", expected=f"text, a number or a bool for {name}", found=repr(value)
    )


def overruled(earlier: Mapping[str, str], later: Mapping[str, str]) -> dict[str, str]:
    """Merges two dictionaries: the later value of a setting counts, under any of its names, as with Spark's options."""
    settings = set(map(setting, later))
    return {**{name: value for name, value in earlier.items() if setting(name) not in settings}, **later}


def without_doubles(conf: Mapping[str, str]) -> dict[str, str]:
    """One name for each setting, the first given one. UsageError: two names of one setting contradict each other."""
    known = hudi_names()
    given: dict[str, str] = {}
    kept: dict[str, str] = {}
    for name, value in conf.items():
        first = given.setdefault(setting(name), name)
        if first == name:
            kept[name] = value
        elif kept[first].strip() != value.strip() and (
            not known[name].agreeing or _plain(kept[first]) != _plain(value)  # names of columns have capitals
        ):
            raise contradiction(first, kept[first], name, value)
    return kept


def word_of(words: Mapping[str, T]) -> Callable[[str], T]:
    """The function that parses one of these words, whatever its case. ValueError, which names them: it is none."""
    by_lower = {word.lower(): value for word, value in words.items()}

    def found(text: str) -> T:
        if (word := text.strip().lower()) not in by_lower:
            raise ValueError(text, " or ".join(words))
        return by_lower[word]

    return found


flag = word_of({"true": True, "false": False})


def listed(text: str) -> tuple[str, ...]:
    """The words between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parsed(known: Known, name: str, value: str) -> tuple[str, Any]:
    """The field that one of the known names sets, and its value. UsageError: no value of this name."""
    field, convert = known[name]
    try:
        return field, convert(value)
    except (KeyError, ValueError) as error:
        expected = error.args[1] if len(error.args) == 2 else _NUMBERS.get(convert, "a value that Hudi takes for it")
        raise UsageError(f"not a value of {name}", expected=expected, found=value) from None


_NUMBERS: Mapping[Any, str] = {whole_number: "a whole number", decimal_number: "a number"}


def put_once(
    into: dict[str, Any], field: str, value: Any, name: str, conf: Mapping[str, Any], said: dict[str, str]
) -> None:
    """Sets a field that several names of `conf` may set; `said`: by which it was. UsageError: see `contradiction`."""
    first = said.setdefault(field, name)
    if into.setdefault(field, value) != value:
        raise contradiction(first, conf[first], name, conf[name])


def not_done(one: HudiName, name: str, value: str) -> UnsupportedError:
    """The error of a value that asks for other rows, files or locks."""
    return UnsupportedError(
        f"{name} asks for what is not done here: {one.why}",
        expected=" or ".join(f"{name}={usual}" for usual in one.agreeing) or None,
        found=f"{name}={value}",
        todo=None if one.agreeing else "Leave it out.",
    )


def contradiction(one: str, value: Any, other: str, other_value: Any) -> UsageError:
    """The error of a setting that is given under two names with different values."""
    return UsageError(
        "configurations that contradict each other",
        expected=f"{one}={value}",
        found=f"{other}={other_value}",
        todo="Leave one of them out.",
    )


LOCK = "hoodie.write.lock."
CONCURRENCY = "hoodie.write.concurrency.mode"
OPTIMISTIC = "OPTIMISTIC_CONCURRENCY_CONTROL"
_SINGLE = "SINGLE_WRITER"
_TODO = {
    OPTIMISTIC: "Give the lock of all writers: hoodie.write.lock.*.",
    "NON_BLOCKING_CONCURRENCY_CONTROL": (
        f"Writers of that mode check no conflicts, those of phantombase do: write with {OPTIMISTIC} and the lock of "
        "all writers. Hudi's writers may keep that mode: phantombase compacts and cleans beside them."
    ),
}
"""What to do instead, by mode."""
_PROVIDERS = "org.apache.hudi.client.transaction.lock."
_ZOOKEEPER = f"{_PROVIDERS}ZookeeperBasedLockProvider"
_IMPLICIT = f"{_PROVIDERS}ZookeeperBasedImplicitBasePathLockProvider"
_STORAGE = f"{_PROVIDERS}StorageBasedLockProvider"
_PORT = "2181"
_ANOTHER = (
    "Give all writers of the table, Hudi's too, one of the expected providers: this lock is not taken, and another "
    "one would not keep them away."
)
_NONE = "This lock keeps no other process away: leave it out if no other process writes."
IN_PROCESS = f"{_PROVIDERS}InProcessLockProvider"
"""Hudi's lock between the threads of one process."""
_OF_ONE_PROCESS = ("InProcessLockProvider", "NoopLockProvider")
_OF_A_NODE = ("zookeeper.url", "zookeeper.base_path", "zookeeper.lock_key")


def is_tuning(conf: Mapping[str, str]) -> bool:
    """Whether the options name no lock: waits and retries, or Hudi's default provider without a place."""
    provider = conf.get("provider", _ZOOKEEPER)
    return provider == _ZOOKEEPER and not any(name in conf for name in _OF_A_NODE)


def is_concurrent(mode: str, *, has_lock: bool) -> bool:
    """Whether a value of `CONCURRENCY` says that there are several writers. UnsupportedError: no lock is theirs."""
    text = mode.strip().upper()
    if text == _SINGLE or (text == OPTIMISTIC and has_lock):
        return text == OPTIMISTIC
    raise UnsupportedError(
        f"this {CONCURRENCY} is not supported{'' if has_lock else ' without a lock'}",
        expected=f"{_SINGLE}, or {OPTIMISTIC} with a lock",
        found=mode,
        todo=_TODO.get(text),
    )


def lock_of(conf: Mapping[str, str], table: str | None = None) -> str:
    """The lock, as `--lock` names it. `conf`: without the common prefix. `table`: Hudi's key where none is given."""
    provider = conf.get("provider", _ZOOKEEPER)  # Hudi's default
    if provider == _STORAGE:
        return STORAGE
    _check_no_blanks(conf)
    if provider == _IMPLICIT:
        return f"zookeeper:{_address(conf)}/tmp/{BASE_PATH_HASH}/lock_key"
    if provider != _ZOOKEEPER:
        raise UnsupportedError(
            f"this {LOCK}provider is not supported",
            expected=f"{_ZOOKEEPER}, {_IMPLICIT} or {_STORAGE}",
            found=str(provider),
            todo=_NONE if str(provider).endswith(_OF_ONE_PROCESS) else _ANOTHER,
        )
    base, key = conf.get("zookeeper.base_path"), conf.get("zookeeper.lock_key", table)
    address = _address(conf)
    for part, value in (("base_path", base), ("lock_key, or hoodie.table.name", key)):
        if value is None:
            raise UsageError("an incomplete ZooKeeper lock", expected=f"{LOCK}zookeeper.{part}")
    if not str(base).startswith("/"):  # Hudi's client ends, too
        raise UsageError("not a path in ZooKeeper", expected=f"{LOCK}zookeeper.base_path=/{base}", found=str(base))
    return f"zookeeper:{address}{str(base).rstrip('/')}/{key}"


def _check_no_blanks(conf: Mapping[str, str]) -> None:
    """UsageError: a part of a node's path with a blank around it. Spark's options keep it and properties files do not,
    so that two jobs with one dictionary would hold two locks."""
    for part in _OF_A_NODE:
        if conf.get(part, "") != conf.get(part, "").strip():
            raise UsageError(
                "a blank around a part of a lock: writers would hold different locks",
                expected=f"{LOCK}{part}={conf[part].strip()}",
                found=repr(conf[part]),
            )


def _address(conf: Mapping[str, str]) -> str:
    if "zookeeper.url" not in conf:
        raise UsageError("an incomplete ZooKeeper lock", expected=f"{LOCK}zookeeper.url")
    return _with_ports(conf["zookeeper.url"], conf.get("zookeeper.port"))


def _with_ports(url: str, port: str | None) -> str:
    """ZooKeeper's client takes 2181 for hosts without a port; Hudi does not read `hoodie.write.lock.zookeeper.port`."""
    hosts, slash, within = url.partition("/")
    bare = [host for host in hosts.split(",") if ":" not in host.rpartition("]")[2]]
    if bare and port not in (None, _PORT):
        raise UsageError(
            "Hudi does not read this port and connects to 2181: writers would hold different locks",
            expected=f"{LOCK}zookeeper.url with the port, as {bare[0]}:{port}",
            found=f"{LOCK}zookeeper.port={port}",
        )
    return ",".join(f"{host}:{_PORT}" if host in bare else host for host in hosts.split(",")) + slash + within


def used_by_the_lock(name: str, conf: Mapping[str, str]) -> bool:
    """Whether the lock that `conf` names uses this option of ZooKeeper. All names are complete."""
    provider, part = conf.get(f"{LOCK}provider", _ZOOKEEPER), name.removeprefix(LOCK)
    if provider == _IMPLICIT:
        return part in ("zookeeper.url", "zookeeper.port")
    return provider == _ZOOKEEPER and any(f"{LOCK}{of}" in conf for of in _OF_A_NODE)
