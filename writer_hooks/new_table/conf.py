"""Hudi's write configuration as the description of a table (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phantombase.compactor_daemon.hudi_names import hudi_names, put_once
from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.format.table_support import KEY_GENERATOR_CLASSES

from ..keys.partition_times import PREFIX
from .spec import MERGE_STRATEGIES

_OLD_PREFIXES = ("hoodie.deltastreamer.keygen.timebased.", "hoodie.streamer.keygen.timebased.")


def _fields(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _generator_class(text: str) -> str:
    return KEY_GENERATOR_CLASSES[text.strip().replace("Avro", "")]


def _generator_type(text: str) -> str:
    return text.strip().upper().removesuffix("_AVRO")


def _mode(text: str) -> MergeMode:
    return {m.value: m for m in (MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME)}[text.strip().upper()]


def _payload(text: str) -> MergeMode:
    by_payload = {
        "DefaultHoodieRecordPayload": MergeMode.EVENT_TIME,
        "OverwriteWithLatestAvroPayload": MergeMode.COMMIT_TIME,
    }
    return by_payload[text.strip().removeprefix("org.apache.hudi.common.model.")]


def _strategy(text: str) -> MergeMode:
    return {strategy: mode for mode, strategy in MERGE_STRATEGIES.items()}[text.strip().lower()]


def _version(text: str) -> int:
    """A number, or Hudi's word for it."""
    return {"SIX": 6, "EIGHT": 8, "NINE": 9}.get(text.strip().upper()) or int(text)


def _zone(text: str) -> bool:
    return {"UTC": True, "LOCAL": False}[text.strip().upper()]


_KNOWN: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "hoodie.table.name": ("name", str),
    "hoodie.datasource.write.table.name": ("name", str),
    "hoodie.database.name": ("database", str),
    "hoodie.write.table.version": ("version", int),
    "hoodie.datasource.write.recordkey.field": ("key_fields", _fields),
    "hoodie.datasource.write.partitionpath.field": ("partition_fields", _fields),
    "hoodie.datasource.write.precombine.field": ("ordering_fields", _fields),
    "hoodie.table.ordering.fields": ("ordering_fields", _fields),
    "hoodie.datasource.write.keygenerator.class": ("key_generator", _generator_class),
    "hoodie.datasource.write.keygenerator.type": ("key_generator", _generator_type),
    "hoodie.datasource.write.hive_style_partitioning": ("hive_style", _flag),
    "hoodie.datasource.write.partitionpath.urlencode": ("url_encode", _flag),
    "hoodie.write.record.merge.mode": ("merge_mode", _mode),
    "hoodie.record.merge.mode": ("merge_mode", _mode),
    "hoodie.datasource.write.payload.class": ("merge_mode", _payload),
    "hoodie.table.timeline.timezone": ("utc_timezone", _zone),
    "hoodie.populate.meta.fields": ("meta_columns", _flag),
    "hoodie.table.recordkey.fields": ("key_fields", _fields),
    "hoodie.table.partition.fields": ("partition_fields", _fields),
    "hoodie.table.precombine.field": ("ordering_fields", _fields),
    "hoodie.table.keygenerator.class": ("key_generator", _generator_class),
    "hoodie.table.keygenerator.type": ("key_generator", _generator_type),
    "hoodie.base.path": ("base_path", str),
    "hoodie.table.version": ("version", _version),
    "hoodie.write.record.merge.strategy.id": ("merge_mode", _strategy),
}
"""The field of `NewTable` that a name sets; `base_path` is none of them, but the path that a write must be given."""

_OF_TABLES = frozenset(
    (
        "hoodie.table.version",
        "hoodie.write.record.merge.strategy.id",
    )
)
"""Hudi makes these of the others: at the default of a release they say nothing."""

TABLE_NAMES = frozenset(_KNOWN)
"""All names of `parse_table_conf` but those of times, which begin as `is_table_conf` knows, and alternative ones."""


def is_table_conf(name: str) -> bool:
    """Whether a name describes a table."""
    return _own(name) in TABLE_NAMES or name.startswith((PREFIX, *_OLD_PREFIXES))


def table_field(name: str) -> str | None:
    """The field of `NewTable` that a name sets; None: it sets none."""
    if not is_table_conf(name):
        return None
    return _KNOWN[_own(name)][0] if _own(name) in _KNOWN else "times"


def _own(name: str) -> str:
    """The name of a setting, of which a name may be an alternative one."""
    return name if name in _KNOWN or name not in hudi_names() else hudi_names()[name].name


def parse_table_conf(conf: Mapping[str, str]) -> dict[str, Any]:
    """Hudi's names and values as fields of `NewTable`.

    UsageError: an unknown name, a wrong value, or two names of one field that contradict each other.
    """
    found: dict[str, Any] = {}
    times: dict[str, str] = {}
    said: dict[str, str] = {}
    for name, value in conf.items():
        prefix = next((p for p in (PREFIX, *_OLD_PREFIXES) if name.startswith(p)), None)
        if prefix is not None:
            if value.strip():  # Hudi's default of some is an empty text: none
                put_once(times, PREFIX + name.removeprefix(prefix), value, name, conf, said)
            continue
        own = _own(name)
        if own in _OF_TABLES and hudi_names()[own].agrees(value):
            continue
        if own not in _KNOWN:
            raise UsageError("not a known configuration of a write or a table", found=f"{name}={value}")
        field, convert = _KNOWN[own]
        try:
            converted = convert(value)
        except (KeyError, ValueError) as error:
            raise UsageError(f"not a known value of {name}", found=value) from error
        put_once(found, field, converted, name, conf, said)
    return {**found, "times": tuple(sorted(times.items()))} if times else found
