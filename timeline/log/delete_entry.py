"""The bytes of a delete block entry, for its reader (`delete_block`) and its writer (`encode`).

The ordering value is a union of one-field wrapper records. All entries of a block take the same union branches. So an
entry is a record in which the index of each branch is an `int`, followed by the value.
"""

from __future__ import annotations

from typing import Any

_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15}
DATE = {"type": "int", "logicalType": "date"}
_TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
WRAPPED: tuple[Any, ...] = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string", DATE, _DECIMAL,
    {"type": "long", "logicalType": "time-micros"}, _TIMESTAMP,
)  # fmt: skip
"""The value types of union indexes 0..11 of `orderingVal`."""

INT, ARRAY, LOCAL_DATE = 2, 12, 12
ORDERING_VALUES_MAX = 64
NESTED: tuple[Any, ...] = (*WRAPPED, DATE)
"""The value types inside an array wrapper: there index 12 is a date."""


def value_kinds(branches: tuple[int, ...]) -> list[Any]:
    """The types of the ordering values for union indexes: (index,), or (12, i1, i2, ...) for an array wrapper."""
    inner = branches[1:]
    return [(NESTED if inner else WRAPPED)[index] for index in inner or branches]


def entry_layout(branches: tuple[int, ...]) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """An entry whose unions take these branches, as a record without unions: (its constant fields, all its fields).

    Fields: `key`, `path`, then for one ordering value `branch`, `value0`; for several the wrapper's `branch`,
    `present`, the array's `size`, then `index0`, `value0`, ..., and the array's `end`.
    """
    inner = branches[1:]
    indexes = {"branch": branches[0]}
    if inner:
        indexes |= {"present": 1, "size": len(inner)}
    fields: list[dict[str, Any]] = [{"name": n, "type": ["null", "string"]} for n in ("key", "path")]
    fields += [{"name": n, "type": "int"} for n in indexes]
    for i, kind in enumerate(value_kinds(branches)):
        if inner:
            indexes[f"index{i}"] = inner[i]
            fields.append({"name": f"index{i}", "type": "int"})
        if kind != "null":
            fields.append({"name": f"value{i}", "type": kind})
    if inner:
        indexes["end"] = 0
        fields.append({"name": "end", "type": "int"})
    return indexes, fields
