"""How records of one key are merged, by the table's properties alone (pure).

`properties` is hoodie.properties as a mapping; callers use `TableConfig`. Payload classes of version 6 mean what Hudi
0.15.0 does with them, merge modes of versions 8 and 9 what 1.2.0 does. Source: runs of both (`tests/hudi/cases`)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from ..errors import UnsupportedError, UsageError

PROPERTIES = ".hoodie/hoodie.properties"
"""Path of the properties file, relative to the table base."""

USE_HUDI = "Use Hudi for this table."
FIRST_OF_1X = 8
"""The first table version that Hudi 1.x creates."""


class MergeMode(Enum):
    """Which of two records of one key wins; the `_0X` rules are those of Hudi 0.15 on version 6 tables."""

    OVERWRITE_WITH_LATEST_0X = "OverwriteWithLatestAvroPayload"
    EVENT_TIME_0X = "DefaultHoodieRecordPayload"
    EVENT_TIME_AVRO_0X = "EventTimeAvroPayload"
    COMMIT_TIME = "COMMIT_TIME_ORDERING"
    EVENT_TIME = "EVENT_TIME_ORDERING"

    @property
    def as_new(self) -> MergeMode:
        """What new tables have in its place."""
        return _AS_NEW.get(self, self)


_AS_NEW = {
    MergeMode.EVENT_TIME_0X: MergeMode.EVENT_TIME,
    MergeMode.EVENT_TIME_AVRO_0X: MergeMode.EVENT_TIME,
    MergeMode.OVERWRITE_WITH_LATEST_0X: MergeMode.COMMIT_TIME,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NotGiven:
    """The values that mean "this row does not give the column": null, or `text` if it is set.
    An older row then gives the column. `in_bytes`: the text counts in columns of bytes too. `among_logs`: log rows give
    columns to each other; otherwise only the base row gives them to a log row. `to_newer`: a row also gives columns to
    a newer row that came before it, such as a base row. `stamps`: such a row keeps its meta columns."""

    text: str | None = None
    in_bytes: bool = False
    among_logs: bool = True
    to_newer: bool = True
    stamps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMarker:
    """Rows whose column `field` holds `value` delete, in `any_case`.
    Hudi's writers convert them to deletes. `in_logs`: its readers treat such rows of data blocks as deletes too."""

    field: str
    value: str
    any_case: bool = False
    in_logs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    """How a table merges. `not_given` None: every row gives all columns. `marker`: in addition to `_hoodie_is_deleted`.
    `deletes_win`: entries of delete blocks win over all earlier entries, whatever their ordering values."""

    mode: MergeMode
    deletes_win: bool = False
    not_given: NotGiven | None = None
    marker: DeleteMarker | None = None


_MODE = "hoodie.record.merge.mode"
_MODES = {mode.value: MergeSettings(mode=mode) for mode in (MergeMode.COMMIT_TIME, MergeMode.EVENT_TIME)}

_PAYLOAD = "hoodie.compaction.payload.class"
_PACKAGE = "org.apache.hudi.common.model."
_BY_PAYLOAD = {
    f"{_PACKAGE}OverwriteWithLatestAvroPayload": MergeSettings(mode=MergeMode.COMMIT_TIME),
    f"{_PACKAGE}DefaultHoodieRecordPayload": MergeSettings(mode=MergeMode.EVENT_TIME),
    f"{_PACKAGE}EventTimeAvroPayload": MergeSettings(mode=MergeMode.EVENT_TIME),
}
_POSTGRES = f"{_PACKAGE}debezium.PostgresDebeziumAvroPayload"
_POSTGRES_ORDERING = "_event_lsn"
_UNAVAILABLE_TEXT = "__debezium_unavailable_value"
_DMS_MARKER = DeleteMarker(field="Op", value="D", any_case=True, in_logs=True)
_DEBEZIUM_MARKER = DeleteMarker(field="_change_operation_type", value="d", any_case=True, in_logs=True)
_BY_PAYLOAD_0X = {
    "": MergeSettings(mode=MergeMode.OVERWRITE_WITH_LATEST_0X),
    f"{_PACKAGE}OverwriteWithLatestAvroPayload": MergeSettings(mode=MergeMode.OVERWRITE_WITH_LATEST_0X),
    f"{_PACKAGE}DefaultHoodieRecordPayload": MergeSettings(mode=MergeMode.EVENT_TIME_0X),
    f"{_PACKAGE}EventTimeAvroPayload": MergeSettings(mode=MergeMode.EVENT_TIME_AVRO_0X),
    f"{_PACKAGE}PartialUpdateAvroPayload": MergeSettings(mode=MergeMode.EVENT_TIME_0X, not_given=NotGiven(stamps=True)),
    f"{_PACKAGE}OverwriteNonDefaultsWithLatestAvroPayload": MergeSettings(
        mode=MergeMode.OVERWRITE_WITH_LATEST_0X, not_given=NotGiven(among_logs=False, to_newer=False)
    ),
    f"{_PACKAGE}AWSDmsAvroPayload": MergeSettings(mode=MergeMode.OVERWRITE_WITH_LATEST_0X, marker=_DMS_MARKER),
    _POSTGRES: MergeSettings(
        mode=MergeMode.EVENT_TIME_0X,
        not_given=NotGiven(text=_UNAVAILABLE_TEXT, in_bytes=True, among_logs=False, to_newer=False),
        marker=_DEBEZIUM_MARKER,
    ),
}
STORED_PAYLOADS = frozenset((*_BY_PAYLOAD_0X, f"{_PACKAGE}debezium.MySqlDebeziumAvroPayload")) - frozenset(
    ("", f"{_PACKAGE}OverwriteWithLatestAvroPayload", f"{_PACKAGE}DefaultHoodieRecordPayload")
)
"""The payload classes that tables of Hudi may have, and new tables here have not."""
_CUSTOM = "CUSTOM"
_CUSTOM_8 = {
    f"{_PACKAGE}PartialUpdateAvroPayload": MergeSettings(
        mode=MergeMode.EVENT_TIME, deletes_win=True, not_given=NotGiven(stamps=True)
    ),
    f"{_PACKAGE}OverwriteNonDefaultsWithLatestAvroPayload": MergeSettings(
        mode=MergeMode.COMMIT_TIME, not_given=NotGiven()
    ),
    f"{_PACKAGE}AWSDmsAvroPayload": MergeSettings(mode=MergeMode.COMMIT_TIME, marker=_DMS_MARKER),
}
"""The payload classes by which 1.2 merges on version 8: each record with the result before it, base row or not.
Without PostgresDebezium: 1.2 fills unavailable values in rows that a write merges into a base file, and keeps them in
rows of log files, when it reads them and when it compacts them."""

_STRATEGY_0X = "hoodie.compaction.record.merger.strategy"
_STRATEGY = "hoodie.record.merge.strategy.id"
_PAYLOAD_STRATEGY = "00000000-0000-0000-0000-000000000000"
EVENT_TIME_STRATEGY = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"
_BY_STRATEGY = {
    EVENT_TIME_STRATEGY: MergeSettings(mode=MergeMode.EVENT_TIME),
    "ce9acb64-bde0-424c-9b91-f6ebba25356d": MergeSettings(mode=MergeMode.COMMIT_TIME),
}
_ORDERING = "hoodie.table.ordering.fields"
_ORDERING_0X = "hoodie.table.precombine.field"

_PARTIAL_MODE = "hoodie.table.partial.update.mode"
_MERGE_PROPERTY = "hoodie.record.merge.property."
_UNAVAILABLE = f"{_MERGE_PROPERTY}hoodie.write.partial.update.unavailable.value"
_DELETE_FIELD = f"{_MERGE_PROPERTY}hoodie.payload.delete.field"
_DELETE_VALUE = f"{_MERGE_PROPERTY}hoodie.payload.delete.marker"
_MERGE_PROPERTIES = (_UNAVAILABLE, _DELETE_FIELD, _DELETE_VALUE)
_MERGE_PROPERTY_PREFIXES = (_MERGE_PROPERTY, "hoodie.payload.delete.")
_MERGE_PROPERTIES_SINCE = 9


def merge_settings(properties: Mapping[str, str], version: int) -> MergeSettings:
    """How the table merges, by the rules of the Hudi release that is the reference for its version. Version 6: by
    payload class, as in Hudi 0.15, unless Hudi 1.x has made the table. Versions 8 and 9: by merge mode. If that is
    missing, by merge strategy id, else by payload class, else by whether there is an ordering field, as in Hudi 1.2;
    then by the mode of partial updates and the merge properties of version 9. UnsupportedError: custom modes,
    strategies, payload classes and properties, a strategy that contradicts the payload."""
    is_0x = version < FIRST_OF_1X and not is_made_by_1x(properties)
    found = _settings_0x(properties) if is_0x else _settings(properties, max(version, FIRST_OF_1X))
    return replace(
        found,
        not_given=_not_given(properties, version) or found.not_given,
        marker=_delete_marker(properties, version) or found.marker,
    )


def is_made_by_1x(properties: Mapping[str, str]) -> bool:
    """Whether a table of version 6 has its ordering fields, or without any its merge strategy, under the names of Hudi
    1.x. Hudi 0.15 finds no ordering fields then, and merges by commit time; such a table's own writers and readers have
    the rules of versions 8 and 9."""
    named = properties.get(_ORDERING) or (properties.get(_STRATEGY) and not properties.get(_STRATEGY_0X))
    return bool(named) and not properties.get(_ORDERING_0X)


def _settings_0x(properties: Mapping[str, str]) -> MergeSettings:
    strategy = properties.get(_STRATEGY_0X) or EVENT_TIME_STRATEGY
    if strategy != EVENT_TIME_STRATEGY:
        raise refusal("custom merge strategies", _STRATEGY_0X, EVENT_TIME_STRATEGY, strategy)
    payload = _payload(properties)
    found = _known(_BY_PAYLOAD_0X, payload, "payload class", _PAYLOAD)
    assert found is not None, "there is a default"
    ordering = properties.get(_ORDERING_0X) or properties.get(_ORDERING)
    if payload == _POSTGRES and ordering != _POSTGRES_ORDERING:
        # Some records would be compared by one column, others by the other.
        raise refusal("another ordering field of this payload class", _ORDERING_0X, _POSTGRES_ORDERING, str(ordering))
    return found


def _settings(properties: Mapping[str, str], version: int) -> MergeSettings:
    payload = _payload(properties)
    by_custom_strategy = (properties.get(_STRATEGY) or _PAYLOAD_STRATEGY) == _PAYLOAD_STRATEGY
    if version == FIRST_OF_1X and payload in _CUSTOM_8 and by_custom_strategy:
        if (mode_text := properties.get(_MODE, "").upper()) not in ("", _CUSTOM):
            raise refusal("contradicting merge settings", _MODE, _CUSTOM, mode_text)
        return _CUSTOM_8[payload]
    if version == FIRST_OF_1X and payload == _POSTGRES and by_custom_strategy:
        raise refusal(
            "this payload class",
            _PAYLOAD,
            "version 6 or 9, where Hudi gives a row the values that it lacks wherever the row lies",
            f"{payload} on version {FIRST_OF_1X}, where Hudi does so when a write merges rows into a base file, and "
            "does not when it reads or compacts log files",
            "Use Hudi for this table, or let it upgrade the table to version 9 (hoodie.write.auto.upgrade=true).",
        )
    by_payload = _known(_BY_PAYLOAD, payload, "payload class", _PAYLOAD)
    mode = _known(_MODES, properties.get(_MODE, "").upper(), "merge mode", _MODE)
    if mode is not None:
        return mode
    strategy = properties.get(_STRATEGY) or properties.get(_STRATEGY_0X) or ""
    by_strategy = _known(_BY_STRATEGY, strategy, "merge strategy", _STRATEGY)
    if by_strategy and by_payload and by_strategy != by_payload:
        raise refusal("contradicting merge settings", _STRATEGY, by_payload.mode.value, by_strategy.mode.value)
    has_ordering = properties.get(_ORDERING) or properties.get(_ORDERING_0X)
    default = MergeSettings(mode=MergeMode.EVENT_TIME if has_ordering else MergeMode.COMMIT_TIME)
    return by_strategy or by_payload or default


def _payload(properties: Mapping[str, str]) -> str:
    return properties.get(_PAYLOAD, "").replace("com.uber.hoodie", "org.apache.hudi")


def _not_given(properties: Mapping[str, str], version: int) -> NotGiven | None:
    mode = properties.get(_PARTIAL_MODE, "").upper()
    if not mode:
        return None
    text = properties.get(_UNAVAILABLE)
    if version >= _MERGE_PROPERTIES_SINCE and mode == "IGNORE_DEFAULTS":
        return NotGiven()
    if version >= _MERGE_PROPERTIES_SINCE and mode == "FILL_UNAVAILABLE" and text:
        return NotGiven(text=text)
    expected = f"IGNORE_DEFAULTS, or FILL_UNAVAILABLE with {_UNAVAILABLE}, on version {_MERGE_PROPERTIES_SINCE}"
    raise refusal("this mode of partial updates", _PARTIAL_MODE, expected, mode)


def _delete_marker(properties: Mapping[str, str], version: int) -> DeleteMarker | None:
    for key in sorted(properties):
        known = version >= _MERGE_PROPERTIES_SINCE and key in _MERGE_PROPERTIES
        if key.startswith(_MERGE_PROPERTY_PREFIXES) and not known:
            raise refusal("this merge property", key, "none", properties[key])
    field, value = properties.get(_DELETE_FIELD), properties.get(_DELETE_VALUE)
    if bool(field) != bool(value):  # Hudi's readers fail too
        expected = f"{_DELETE_FIELD} and {_DELETE_VALUE}"
        raise refusal("half a delete marker", _DELETE_FIELD, expected, str(field or value))
    return DeleteMarker(field=field, value=value) if field and value else None


def _known(known: Mapping[str, MergeSettings], text: str, what: str, key: str) -> MergeSettings | None:
    if text and text not in known:
        raise refusal(f"this {what}", key, " or ".join(filter(None, known)), text)
    return known.get(text)


def refusal(what: str, key: str, expected: str, found: str, todo: str = USE_HUDI) -> UnsupportedError:
    """A setting that is not supported."""
    return UnsupportedError(
        f"{what} ({key}): not supported", path=PROPERTIES, expected=expected, found=found, todo=todo
    )


_KEY_GENERATOR_CLASS = "hoodie.table.keygenerator.class"
KEY_GENERATOR_TYPE = "hoodie.table.keygenerator.type"
KEY_GENERATOR_CLASSES = {
    "org.apache.hudi.keygen.SimpleKeyGenerator": "SIMPLE",
    "org.apache.hudi.keygen.ComplexKeyGenerator": "COMPLEX",
    "org.apache.hudi.keygen.NonpartitionedKeyGenerator": "NON_PARTITION",
    "org.apache.hudi.keygen.TimestampBasedKeyGenerator": "TIMESTAMP",
    "org.apache.hudi.keygen.CustomKeyGenerator": "CUSTOM",
    "org.apache.hudi.keygen.GlobalDeleteKeyGenerator": "GLOBAL_DELETE",
}
"""Hudi's own key generators and their types, without the `Avro` variants."""


def key_generator_of(properties: Mapping[str, str]) -> str | None:
    """SIMPLE, COMPLEX, NON_PARTITION, ... by class, else by type; None if neither is set.
    Hudi's `Avro` variants make the same keys and have the same name; classes of others are USER_PROVIDED."""
    class_name = properties.get(_KEY_GENERATOR_CLASS)
    if class_name:
        return KEY_GENERATOR_CLASSES.get(class_name.replace("Avro", ""), "USER_PROVIDED")
    return properties.get(KEY_GENERATOR_TYPE, "").removesuffix("_AVRO") or None


NEW_PAYLOADS = {
    MergeMode.EVENT_TIME: f"{_PACKAGE}DefaultHoodieRecordPayload",
    MergeMode.COMMIT_TIME: f"{_PACKAGE}OverwriteWithLatestAvroPayload",
}
"""The payload classes of tables that are made here."""
PAYLOAD = "hoodie.datasource.write.payload.class"
_STORED = (_PAYLOAD, "hoodie.table.legacy.payload.class")
"""Where a table stores its payload class."""
MERGE_STRATEGIES = {
    MergeMode.EVENT_TIME: EVENT_TIME_STRATEGY,
    MergeMode.COMMIT_TIME: "ce9acb64-bde0-424c-9b91-f6ebba25356d",
}
"""The id of Hudi's merge strategy, by merge mode."""


def mode_of_payload(text: str) -> MergeMode:
    """The merge mode of a payload class that new tables can have. KeyError: another class."""
    return {payload: mode for mode, payload in NEW_PAYLOADS.items()}[_PACKAGE + text.strip().removeprefix(_PACKAGE)]


def is_stored_payload(text: str) -> bool:
    """Whether it is a payload class that only Hudi gives to a table. UsageError: tables with it are not written."""
    with suppress(KeyError):
        mode_of_payload(text)
        return False
    if text.strip() in STORED_PAYLOADS:
        return True
    deletes = text.strip().endswith("EmptyHoodieRecordPayload")
    raise UsageError(
        f"not a value of {PAYLOAD}",
        expected=" or ".join(NEW_PAYLOADS.values()),
        found=text,
        todo="To delete the rows of these keys, leave it out and set hoodie.datasource.write.operation=delete."
        if deletes
        else "Leave it out, or name the class of the table.",
    )


def check_payload(properties: Mapping[str, str], text: str) -> None:
    """UsageError: a payload class that only Hudi gives to a table, and this table does not have it."""
    if text and is_stored_payload(text) and text.strip() not in {properties.get(name) for name in _STORED}:
        raise UsageError(
            "only Hudi makes tables with this payload class; those that have it are written",
            expected=" or ".join(f"{PAYLOAD}={payload}" for payload in NEW_PAYLOADS.values()),
            found=f"{PAYLOAD}={text}",
            todo="Leave it out if all rows are complete; otherwise let Hudi make the table.",
        )
