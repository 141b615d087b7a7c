"""Names of columns in older files."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from phantombase.timeline.arrow.conform import conform
from phantombase.timeline.arrow.stored_names import SAME_NAMES, StoredNames, names_in, stored
from phantombase.timeline.errors import UnsupportedError


def test_columns_by_their_names_in_a_file() -> None:
    """Those that it does not have are left out."""
    assert stored(["a", "b", "c"], SAME_NAMES, ["c", "a", "d"]) == ["a", "c"]
    assert stored(["a", "b", "c"], {"a": "b", "b": None}, ["a", "b", "c"]) == ["b", "c"]


def test_columns_in_other_letters() -> None:
    """A column that the file lacks is the one of another case there, but not one that is another column's."""
    assert stored(["State", "id"], SAME_NAMES, ["id", "state"]) == ["state", "id"]
    assert names_in(["State", "id"], SAME_NAMES, ["id", "state"]) == {"State": "state"}
    assert names_in(["State", "STATE"], SAME_NAMES, ["STATE"]) == {}
    assert names_in(["a"], {"b": "a"}, ["A"]) == {"b": "a"}  # columns that evolve on read have numbers
    with pytest.raises(UnsupportedError, match="differ by case only") as failure:
        names_in(["State"], SAME_NAMES, ["state", "STATE"], "p/base.parquet")
    assert failure.value.path == "p/base.parquet"


@pytest.mark.parametrize(
    ("instant", "names"), [("10", {"a": "x"}), ("20", {"a": "x"}), ("29", {"a": "x"}), ("30", {}), ("25", {"a": "y"})]
)
def test_names_of_an_instant(instant: str, names: dict[str, str]) -> None:
    """Its commit's, else those since the last change before it; the first before all."""
    found = StoredNames(commits={"25": {"a": "y"}}, changes=((20, {"a": "x"}), (30, {})))
    assert found
    assert found.at(instant) == names
    assert pickle.loads(pickle.dumps(found)).at(instant) == names


def test_without_changes_all_names_are_the_same() -> None:
    """Nothing is looked up."""
    assert not StoredNames()
    assert StoredNames().at("10") == {}


def test_rows_of_renamed_columns() -> None:
    """Swapped names, one that the file does not have though another column has its name, and its type is kept."""
    rows = pa.table({"a": [1, 2], "b": ["x", "y"], "c": [True, None]})
    schema = pa.schema([("b", pa.int64()), ("a", pa.string()), ("c", pa.string()), ("d", pa.int32())])
    found = conform(rows, schema, "t", names={"a": "b", "b": "a", "c": None})
    assert found.schema == schema
    assert found.to_pydict() == {"b": [1, 2], "a": ["x", "y"], "c": [None, None], "d": [None, None]}


def test_a_file_of_which_nothing_is_known_is_refused() -> None:
    """By its own name a column could be another one."""
    found = StoredNames(commits={"15": {}}, changes=((20, {"a": "x"}),), unknown_before=20)
    assert (found.at("20"), found.at("15")) == ({"a": "x"}, {})
    with pytest.raises(UnsupportedError, match="first change of columns are not known"):
        found.at("19")
