"""Avro schemas as Hudi writes them (pure); `arrow_schema` converts them to Arrow schemas.

Refused by name: a union of two or more non-null branches, a record that contains itself, and schemas in which a few
bytes stand for much data (see `_Expander`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from ..errors import MalformedError, UnsupportedError, reason_of

META_COLUMNS = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)
"""Hudi's five meta columns, always first, all nullable strings."""

COMMIT_TIME, COMMIT_SEQNO, RECORD_KEY, PARTITION_PATH, FILE_NAME = META_COLUMNS

OPERATION = "_hoodie_operation"
"""Hudi's sixth meta column, in changelog tables only: `D` and `-U` mark rows that delete. Commits do not mention it."""

_PRIMITIVE = frozenset(("string", "bytes", "boolean", "int", "long", "float", "double"))


def changelog(path: str | None = None, instant: str | None = None) -> UnsupportedError:
    """The error for a table whose rows carry an operation."""
    what = f"changelog tables (rows with {OPERATION}, which may delete) are not supported"
    return UnsupportedError(what, path=path, instant=instant, todo="Use Hudi for this table.")


@lru_cache(maxsize=64)
def parse_avro(text: str) -> dict[str, Any]:
    """A record schema in which every reference to a named type is replaced by the definition (with new names). Fields
    have `name`, `type`, and `default` where it is not null. The result is shared: do not change it."""
    with reading(text):
        expanded = _Expander().expand(json.loads(text), "", ())
    if not isinstance(expanded, dict) or expanded.get("type") != "record":
        raise MalformedError("not an Avro record schema", found=text[:60])
    return expanded


_OF_PYTHON: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)


@contextmanager
def reading(text: str, *more: type[Exception]) -> Iterator[None]:
    """Turns Python's errors for an invalid schema, and errors of the classes `more`, into MalformedError."""
    try:
        yield
    except (*_OF_PYTHON, *more) as error:
        raise MalformedError("not an Avro schema", found=f"{reason_of(error)[:200]}: {text[:60]!r}") from error


_NODES_MAX = 30_000
_DEPTH_MAX = 64
FIXED_BYTES_MAX = 4096
"""Largest size of one value of a fixed type."""


class _Expander:
    """Resolves named references; names are made unique because a definition may then occur in many places.
    Refused, because a few bytes of schema or data would then need any amount of memory or time: definitions that expand
    to more than 30 000 nodes, nesting deeper than 64, arrays of values without bytes, fixed types of more than 4096
    bytes (in Arrow each null takes as much)."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._count = 0
        self._depth = 0

    def expand(self, node: Any, namespace: str, above: tuple[str, ...]) -> Any:
        """The type, with the definition in place of each reference."""
        self._count += 1
        self._depth += 1
        if self._depth > _DEPTH_MAX or self._count > _NODES_MAX:
            expected = f"at most {_DEPTH_MAX} levels, {_NODES_MAX} nodes"
            found = f"level {self._depth}, node {self._count}"
            raise UnsupportedError("Avro schema too deep or too large", expected=expected, found=found)
        try:
            return self._expand(node, namespace, above)
        finally:
            self._depth -= 1

    def _expand(self, node: Any, namespace: str, above: tuple[str, ...]) -> Any:
        if isinstance(node, str):
            return self._reference(node, namespace, above)
        if isinstance(node, list):
            return [self.expand(branch, namespace, above) for branch in node]
        if not isinstance(node, dict) or "type" not in node:
            raise MalformedError("not an Avro type", found=repr(node)[:80])
        kind = node["type"]
        if kind in ("record", "error", "fixed", "enum"):
            return self._definition(node, namespace, above)
        if kind == "array":
            items = self.expand(part_of(node, "items"), namespace, above)
            if smallest_bytes(items) == 0:
                raise UnsupportedError("Avro arrays of values without bytes are not supported", found=str(items)[:80])
            return {"type": "array", "items": items}
        if kind == "map":
            return {"type": "map", "values": self.expand(part_of(node, "values"), namespace, above)}
        inner = self.expand(kind, namespace, above)
        logical = {k: v for k, v in node.items() if k in ("logicalType", "precision", "scale")}
        if not logical or isinstance(inner, list):
            return inner
        return {**inner, **logical} if isinstance(inner, dict) else {"type": inner, **logical}

    def _reference(self, name: str, namespace: str, above: tuple[str, ...]) -> Any:
        if name == "null" or name in _PRIMITIVE:
            return name
        full = name if "." in name else f"{namespace}.{name}" if namespace else name
        if full in above:
            raise UnsupportedError("recursive Avro record types are not supported", found=full)
        if full not in self._named:
            raise MalformedError("Avro schema refers to a type that it does not define", found=name)
        node, home = self._named[full]
        return self._definition(node, home, above)

    def _definition(self, node: dict[str, Any], namespace: str, above: tuple[str, ...]) -> dict[str, Any]:
        name = str(part_of(node, "name"))
        full = name if "." in name else ".".join(p for p in (node.get("namespace", namespace), name) if p)
        if full in above:
            raise UnsupportedError("recursive Avro record types are not supported", found=full)
        home = full.rpartition(".")[0]
        self._named[full] = (node, home)
        fresh: dict[str, Any] = {"type": node["type"], "name": f"t{self._count}"}
        if node["type"] == "fixed":
            kept: dict[str, Any] = {k: node[k] for k in ("logicalType", "precision", "scale") if k in node}
            size = part_of(node, "size")
            if not isinstance(size, int) or not 0 <= size <= FIXED_BYTES_MAX:
                raise UnsupportedError(
                    "size of an Avro fixed type", expected=f"0 to {FIXED_BYTES_MAX} bytes", found=repr(size)[:80]
                )
            return {**fresh, "size": size, **kept}
        if node["type"] == "enum":
            return {**fresh, "symbols": part_of(node, "symbols")}
        fields = [
            {
                "name": part_of(f, "name"),
                "type": self.expand(part_of(f, "type"), home, (*above, full)),
                **({"default": f["default"]} if f.get("default") is not None else {}),
            }
            for f in part_of(node, "fields")
        ]
        return {**fresh, "type": "record", "fields": fields}


def part_of(node: Any, key: str) -> Any:
    """The value of a node's key; MalformedError if the node does not have it."""
    if not isinstance(node, dict) or key not in node:
        raise MalformedError(f"Avro schema node without {key!r}", found=repr(node)[:80])
    return node[key]


def smallest_bytes(node: Any) -> int:
    """Bytes of the shortest value of a type in Avro's binary encoding; `node` comes from `parse_avro`."""
    if isinstance(node, list):
        return 1 + min((smallest_bytes(branch) for branch in node), default=0)
    kind = node if isinstance(node, str) else node["type"]
    if kind == "record":
        return sum(smallest_bytes(f["type"]) for f in node["fields"])
    if kind == "fixed":
        return int(node["size"])
    return {"null": 0, "float": 4, "double": 8}.get(kind, 1)


def without_null(node: Any) -> tuple[Any, bool]:
    """(the type without null, whether null is allowed); UnsupportedError for unions of several types."""
    if not isinstance(node, list):
        return node, False
    branches = [b for b in node if b != "null"]
    if len(branches) != 1:
        raise UnsupportedError("Avro unions of several types are not supported", found=json.dumps(node)[:120])
    return branches[0], len(branches) < len(node)


def defaults_of(text: str) -> dict[tuple[str, ...], Any]:
    """The defaults of columns and their parts that are not null, as in JSON, by path: `element` and `value` are parts
    of arrays and maps."""
    return dict(_defaults(parse_avro(text), ()))


def _defaults(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = without_null(node)[0]
    kind = inner if isinstance(inner, str) else inner["type"]
    for field in inner["fields"] if kind == "record" else ():
        here = (*path, field["name"])
        if "default" in field:
            yield here, field["default"]
        yield from _defaults(field["type"], here)
    if kind == "array":
        yield from _defaults(inner["items"], (*path, "element"))
    if kind == "map":
        yield from _defaults(inner["values"], (*path, "value"))


def with_meta_columns(text: str) -> str:
    """A schema without meta columns, with Hudi's five put in front."""
    with reading(text):
        schema = json.loads(text)
        meta = [{"name": name, "type": ["null", "string"], "doc": "", "default": None} for name in META_COLUMNS]
        return json.dumps({**schema, "fields": [*meta, *schema["fields"]]}, separators=(",", ":"))


def without_meta_columns(text: str) -> str:
    """The schema as commits record it: without the meta columns."""
    with reading(text):
        schema = json.loads(text)
        fields = [f for f in schema["fields"] if f["name"] not in META_COLUMNS]
        return json.dumps({**schema, "fields": fields}, separators=(",", ":"))


_OF_HUDI = ("blob", "variant", "vector")
"""Logical types of columns that Hudi 1.2 added; Avro itself does not know them."""


@lru_cache(maxsize=64)
def hudi_types(text: str) -> Mapping[str, str]:
    """The columns of a schema, and parts of them, that have a type of Hudi 1.2: `vector` by `embedding`."""
    if not any(f'"{name}"' in text for name in _OF_HUDI):
        return {}
    with reading(text):
        return dict(_hudi_types(json.loads(text), ""))


def _hudi_types(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, list):
        for branch in node:
            yield from _hudi_types(branch, path)
    if not isinstance(node, dict):
        return
    logical = node.get("logicalType")
    if path and logical in _OF_HUDI:
        yield path, logical
        return
    for field in node.get("fields", ()):
        yield from _hudi_types(part_of(field, "type"), f"{path}.{field['name']}" if path else str(field["name"]))
    for inside in ("type", "items", "values"):
        yield from _hudi_types(node.get(inside), path)


def has_decimals_of_bytes(text: str) -> bool:
    """Whether a schema has decimals of Avro's `bytes`, as those of Kafka's and Debezium's clients have."""

    def found(node: Any) -> bool:
        if isinstance(node, list):
            return any(map(found, node))
        if not isinstance(node, dict):
            return False
        here = node.get("type") == "bytes" and node.get("logicalType") == "decimal"
        return here or any(found(node.get(inside)) for inside in ("type", "fields", "items", "values"))

    with reading(text):
        return found(json.loads(text))


def project_text(text: str, columns: Sequence[str]) -> str:
    """The schema with the named fields, in its order. UnsupportedError: one uses a type that an omitted one defines."""
    with reading(text):
        schema, wanted = json.loads(text), set(columns)
        fields = [f for f in schema["fields"] if f["name"] in wanted]
        found = json.dumps({**schema, "fields": fields}, separators=(",", ":"), ensure_ascii=False)
    try:
        parse_avro(found)
    except MalformedError as error:
        raise UnsupportedError(
            "columns that share a named type with another column cannot be written without it", found=str(error)
        ) from error
    return found
