"""Decides by their properties alone which tables are supported (pure): merge modes, key generators, refusals.

`properties` is hoodie.properties as a mapping; callers use `TableConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ..errors import UnsupportedError
from ..storage.folders import HOODIE
from .layout import LAYOUT_1, Layout

PROPERTIES = f"{HOODIE}/hoodie.properties"
"""Path of the properties file, relative to the table base."""

_USE_HUDI = "Use Hudi for this table."


class MergeMode(Enum):
    """Which of two records of one key wins; the `_0X` rules are those of Hudi 0.15 on version 6 tables."""

    OVERWRITE_WITH_LATEST_0X = "OverwriteWithLatestAvroPayload"
    EVENT_TIME_0X = "DefaultHoodieRecordPayload"
    EVENT_TIME_AVRO_0X = "EventTimeAvroPayload"
    COMMIT_TIME = "COMMIT_TIME_ORDERING"
    EVENT_TIME = "EVENT_TIME_ORDERING"


_MODE = "hoodie.record.merge.mode"
_MODES = {mode.value: mode for mode in (MergeMode.COMMIT_TIME, MergeMode.EVENT_TIME)}

_PAYLOAD = "hoodie.compaction.payload.class"
_PAYLOAD_PACKAGE = "org.apache.hudi.common.model."
_DEFAULT_PAYLOAD_0X = f"{_PAYLOAD_PACKAGE}OverwriteWithLatestAvroPayload"
_EVENT_TIME_PAYLOAD = f"{_PAYLOAD_PACKAGE}EventTimeAvroPayload"
_BY_PAYLOAD = {
    _DEFAULT_PAYLOAD_0X: MergeMode.COMMIT_TIME,
    f"{_PAYLOAD_PACKAGE}DefaultHoodieRecordPayload": MergeMode.EVENT_TIME,
    _EVENT_TIME_PAYLOAD: MergeMode.EVENT_TIME,
}
_AS_0X = {
    MergeMode.COMMIT_TIME: MergeMode.OVERWRITE_WITH_LATEST_0X,
    MergeMode.EVENT_TIME: MergeMode.EVENT_TIME_0X,
}

_STRATEGY_0X = "hoodie.compaction.record.merger.strategy"
_STRATEGY = "hoodie.record.merge.strategy.id"
EVENT_TIME_STRATEGY = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
_BY_STRATEGY = {
    EVENT_TIME_STRATEGY: MergeMode.EVENT_TIME,
    "ce9acb64-bde0-424c-9b91-f6ebba25356d": MergeMode.COMMIT_TIME,
}


def merge_mode_of(properties: Mapping[str, str], version: int) -> MergeMode:
    """How records of one key are merged, as the Hudi release decides that judges the version.

    Version 6: by payload class, as in Hudi 0.15. Versions 8 and 9: by merge mode. If that is missing, by merge
    strategy id, else by payload class, else by whether there is an ordering field, as in Hudi 1.2.

    UnsupportedError: custom modes, strategies and payload classes, a strategy that contradicts the payload.
    """
    payload = properties.get(_PAYLOAD, "").replace("com.uber.hoodie", "org.apache.hudi")
    by_payload = _known(_BY_PAYLOAD, payload, "payload class", _PAYLOAD)
    if version in LAYOUT_1.versions:
        strategy = properties.get(_STRATEGY_0X) or EVENT_TIME_STRATEGY
        if strategy != EVENT_TIME_STRATEGY:
            raise _refusal("custom merge strategies", _STRATEGY_0X, EVENT_TIME_STRATEGY, strategy)
        if payload == _EVENT_TIME_PAYLOAD:
            return MergeMode.EVENT_TIME_AVRO_0X
        return _AS_0X[by_payload or _BY_PAYLOAD[_DEFAULT_PAYLOAD_0X]]
    mode = _known(_MODES, properties.get(_MODE, "").upper(), "merge mode", _MODE)
    if mode is not None:
        return mode
    strategy = properties.get(_STRATEGY) or properties.get(_STRATEGY_0X) or ""
    by_strategy = _known(_BY_STRATEGY, strategy, "merge strategy", _STRATEGY)
    if by_strategy and by_payload and by_strategy is not by_payload:
        raise _refusal("contradicting merge settings", _STRATEGY, by_payload.value, by_strategy.value)
    has_ordering = properties.get(_ORDERING) or properties.get(_ORDERING_0X)
    return by_strategy or by_payload or (MergeMode.EVENT_TIME if has_ordering else MergeMode.COMMIT_TIME)


_ORDERING = "hoodie.table.ordering.fields"
_ORDERING_0X = "hoodie.table.precombine.field"


def _known(known: Mapping[str, MergeMode], text: str, what: str, key: str) -> MergeMode | None:
    if text and text not in known:
        raise _refusal(f"this {what}", key, " or ".join(known), text)
    return known.get(text)


_KEY_GENERATOR_CLASS = "hoodie.table.keygenerator.class"
_KEY_GENERATOR_TYPE = "hoodie.table.keygenerator.type"
KEY_GENERATOR_CLASSES = {
    "org.apache.hudi.keygen.SimpleKeyGenerator": "SIMPLE",
    "org.apache.hudi.keygen.ComplexKeyGenerator": "COMPLEX",
    "org.apache.hudi.keygen.NonpartitionedKeyGenerator": "NON_PARTITION",
    "org.apache.hudi.keygen.TimestampBasedKeyGenerator": "TIMESTAMP",
    "org.apache.hudi.keygen.CustomKeyGenerator": "CUSTOM",
    "org.apache.hudi.keygen.GlobalDeleteKeyGenerator": "GLOBAL_DELETE",
}
"""Hudi's own key generators and their types; the `Avro` twins are left out."""


def key_generator_of(properties: Mapping[str, str]) -> str | None:
    """SIMPLE, COMPLEX, NON_PARTITION, ... by class, else by type; None if neither is set.

    Hudi's `Avro` twins make the same keys and get the same name; classes of others are USER_PROVIDED.
    """
    class_name = properties.get(_KEY_GENERATOR_CLASS)
    if class_name:
        return KEY_GENERATOR_CLASSES.get(class_name.replace("Avro", ""), "USER_PROVIDED")
    return properties.get(_KEY_GENERATOR_TYPE, "").removesuffix("_AVRO") or None


# What is refused, its property, Hudi's default, the one supported value, what to do.
_SETTINGS = (
    (
        "this table type",
        "hoodie.table.type",
        "COPY_ON_WRITE",
        "MERGE_ON_READ",
        "It has no log files to compact.",
    ),
    ("this base file format", "hoodie.table.base.file.format", "PARQUET", "PARQUET", _USE_HUDI),
    (
        "several base file formats",
        "hoodie.table.multiple.base.file.formats.enable",
        "false",
        "false",
        _USE_HUDI,
    ),
    (
        "dropped partition columns",
        "hoodie.datasource.write.drop.partition.columns",
        "false",
        "false",
        _USE_HUDI,
    ),
    ("change data capture", "hoodie.table.cdc.enabled", "false", "false", _USE_HUDI),
    ("partial updates", "hoodie.table.partial.update.mode", "", "", _USE_HUDI),
    ("bootstrapped tables", "hoodie.bootstrap.base.path", "", "", "Rewrite the table with Hudi first."),
    ("this table format", "hoodie.table.format", "native", "native", _USE_HUDI),
)
_LAYOUT_VERSION = "hoodie.timeline.layout.version"
_MERGE_PROPERTY_PREFIXES = ("hoodie.record.merge.property.", "hoodie.payload.delete.")
_POPULATE_META_FIELDS = "hoodie.populate.meta.fields"
_VIRTUAL_KEY_GENERATORS = ("SIMPLE", "COMPLEX", "NON_PARTITION")


def check_supported(properties: Mapping[str, str], version: int) -> None:
    """UnsupportedError for the first setting with which reading or compacting would go wrong; it names the setting."""
    layout = Layout.of(version)
    for what, key, default, supported, todo in _SETTINGS:
        found = properties.get(key) or default
        if found.upper() != supported.upper():
            raise _refusal(what, key, supported or "none", found, todo)
    timeline_layout = "2" if layout.has_completion_times else "1"
    found = properties.get(_LAYOUT_VERSION) or timeline_layout
    if found != timeline_layout:
        raise _refusal("this timeline layout", _LAYOUT_VERSION, timeline_layout, found)
    for key in sorted(properties):
        if key.startswith(_MERGE_PROPERTY_PREFIXES):
            raise _refusal("merge properties such as custom delete markers", key, "none", properties[key])
    merge_mode_of(properties, version)
    generator = key_generator_of(properties) or "none"
    if properties.get(_POPULATE_META_FIELDS, "").lower() == "false" and generator not in _VIRTUAL_KEY_GENERATORS:
        what = "virtual keys of this key generator"
        raise _refusal(what, _KEY_GENERATOR_TYPE, " or ".join(_VIRTUAL_KEY_GENERATORS), generator)


def _refusal(what: str, key: str, expected: str, found: str, todo: str = _USE_HUDI) -> UnsupportedError:
    return UnsupportedError(
        f"{what} ({key}): not supported", path=PROPERTIES, expected=expected, found=found, todo=todo
    )
