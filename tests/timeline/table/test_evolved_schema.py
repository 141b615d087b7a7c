"""Hudi's record of columns that evolve on read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phantombase.timeline.errors import MalformedError
from phantombase.timeline.table.evolved_schema import EvolvedColumns, parse_columns, parse_history, unsupported_change


def columns(*fields: tuple[int, str, Any], since: int = 0) -> dict[str, Any]:
    """A record of columns: id, name and type each."""
    made = [{"id": number, "name": name, "optional": True, "type": kind} for number, name, kind in fields]
    return {"max_column_id": 9, "version_id": since, "type": "record", "fields": made}


def at(*fields: tuple[int, str, Any]) -> EvolvedColumns:
    """The same, parsed."""
    return parse_columns(json.dumps(columns(*fields)), "t")


def record(name: str, number: int = 1, kind: str = "int") -> dict[str, Any]:
    """A record with one field."""
    return {"type": "record", "fields": [{"id": number, "name": name, "optional": True, "type": kind}]}


def test_parts_of_columns_have_ids_of_their_own() -> None:
    """Records, arrays and maps, in each other."""
    array = {"type": "array", "element_id": 3, "element_optional": True, "element": record("x", 5)}
    map_ = {"type": "map", "key_id": 6, "value_id": 7, "key": "string", "value": array, "value_optional": True}
    text = json.dumps(columns((0, "a", "int"), (1, "list", array), (2, "map", map_), since=20240101000000000))
    found = parse_columns(text, "t")
    assert found.since == 20240101000000000
    assert {".".join(path): (one.id, one.kind) for path, one in found.parts.items()} == {
        "a": (0, "int"),
        "list": (1, "array"),
        "list.element": (3, "record"),
        "list.element.x": (5, "int"),
        "map": (2, "map"),
        "map.key": (6, "string"),
        "map.value": (7, "array"),
        "map.value.element": (3, "record"),
        "map.value.element.x": (5, "int"),
    }


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ([(0, "a", "int"), (1, "b", "string")], [(2, "c", "string"), (0, "a", "long")]),
        ([(0, "a", "int")], [(0, "b", "int")]),
        ([(0, "a", "int")], [(1, "a", "string")]),
        ([(0, "a", record("x"))], [(0, "b", record("x"))]),
        ([(0, "a", record("x"))], [(2, "a", record("x", 3))]),
        ([(0, "a", record("x"))], [(0, "a", record("x", kind="long"))]),
        ([(0, "a", "long")], [(0, "a", "string")]),
    ],
    ids=[
        "added, dropped, widened",
        "renamed",
        "added anew",
        "renamed record",
        "record added anew",
        "part widened",
        "text",
    ],
)
def test_such_changes_are_followed(earlier: list[tuple[int, str, Any]], later: list[tuple[int, str, Any]]) -> None:
    """In any order of the times."""
    assert unsupported_change([], ()) is None
    assert unsupported_change([at(*earlier), at(*later)], ["key"]) is None
    assert unsupported_change([at(*later), at(*earlier)], ["key"]) is None


@pytest.mark.parametrize(
    ("earlier", "later", "says"),
    [
        ([(0, "key", "int")], [(0, "b", "int")], "column key, which the table's settings name"),
        ([(0, "key", "int")], [(1, "key", "int")], "column key, which the table's settings name"),
        ([(0, "a", "int")], [(0, "key", "int")], "column key, which the table's settings name"),
        ([(0, "a", "int")], [(0, "a", "boolean")], "a changed its type: boolean, int"),
        ([(0, "a", "float")], [(0, "a", "string")], "a changed its type: float, string"),
        ([(0, "a", "decimal(4, 2)")], [(0, "a", "decimal(9, 2)")], "a changed its type"),
        ([(0, "a", record("x"))], [(0, "a", record("x", kind="boolean"))], "a.x changed its type"),
        ([(0, "a", record("x"))], [(0, "a", record("y"))], "was renamed or added anew: it is a part"),
        ([(0, "a", record("x"))], [(0, "a", record("x", 2))], "a.x was renamed or added anew: it is a part"),
    ],
)
def test_what_cannot_be_followed_is_named(
    earlier: list[tuple[int, str, Any]], later: list[tuple[int, str, Any]], says: str
) -> None:
    """Columns that the settings name, other types, parts of columns."""
    for times in ((earlier, later), (later, earlier)):
        assert says in (unsupported_change([at(*one) for one in times], ["key"]) or "")


@pytest.mark.parametrize("types", [("float", "double"), ("int", "long"), ("int", "string"), ("string", "long")])
def test_ordering_columns_keep_their_type(types: tuple[str, str]) -> None:
    """Deletes in logs have ordering values of the old type, and text orders numbers in another way."""
    times = [at((0, "ts", kind)) for kind in types]
    assert unsupported_change(times, ["ts"]) is None
    assert "ordering column ts changed its type" in (unsupported_change(times, ["ts"], ["ts"]) or "")
    assert unsupported_change(times[:1], ["ts"], ["ts", "other"]) is None


@pytest.mark.parametrize(
    ("older", "names"),
    [
        ([(0, "a", "int"), (1, "b", "int")], {}),
        ([(0, "a", "int")], {}),
        ([(0, "x", "int"), (1, "b", "int")], {"a": "x"}),
        ([(0, "b", "int"), (1, "a", "int")], {"a": "b", "b": "a"}),
        ([(7, "a", "int"), (1, "b", "int")], {"a": None}),
        ([(7, "a", "int"), (0, "b", "int")], {"a": "b", "b": None}),
    ],
)
def test_names_in_a_file_of_older_columns(older: list[tuple[int, str, Any]], names: dict[str, str | None]) -> None:
    """Of the columns a and b: by id. A column that the file does not have needs no name, unless another one has it."""
    assert at((0, "a", "int"), (1, "b", record("z", 3))).names_of(at(*older)) == names


@pytest.mark.parametrize("text", ["", "[]", "{", '{"fields": 3}', '{"fields": [{"name": "a", "type": "int"}]}', "{}"])
def test_what_is_no_record_of_columns_is_an_error(text: str) -> None:
    """Of one time, and of all times."""
    with pytest.raises(MalformedError, match=r"evolved columns.*t"):
        parse_columns(text, "t")
    with pytest.raises(MalformedError, match=r"evolved columns.*t"):
        parse_history(text, "t")


def test_an_unknown_kind_of_type_is_an_error() -> None:
    """It could have parts with names of their own."""
    with pytest.raises(MalformedError, match="unknown type set"):
        at((0, "a", {"type": "set"}))


def test_a_history_has_all_times() -> None:
    """As they stand in the file."""
    text = json.dumps({"schemas": [columns((0, "b", "int"), since=2), columns((0, "a", "int"), since=1)]})
    assert [one.since for one in parse_history(text, "t")] == [2, 1]
