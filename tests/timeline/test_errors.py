"""Each error says what, where, what was found, and what to do: the classes, and all places that raise them."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import traceback

import pytest
import typer

from phantombase.timeline import errors
from phantombase.timeline.errors import (
    PhantombaseError,
    StorageError,
    UsageError,
    fault_of,
    in_table,
    reason_of,
    without_classes,
)
from phantombase.timeline.terminal.boundary import run
from tests.project.rooms import modules

TREE = {name: one for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, PhantombaseError)}
OF_THE_USER = {"option", "rows", "erase"}
"""Files whose errors quote the class of what a user gave."""


def told(error: PhantombaseError, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What a command prints when an error reaches its end."""
    app = typer.Typer(name="command")

    @app.command()
    def fails(json: bool = False) -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run(app, options)
    assert ended.value.code == (2 if isinstance(error, UsageError) else 1)
    return capsys.readouterr().err


def test_each_error_of_the_tree_has_a_table_a_reason_and_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    for name, one in TREE.items():
        error = one("the work failed", path="/data/orders", found="a reason")
        line = told(error, capsys)
        assert line.startswith("error: the work failed; at /data/orders; found a reason"), name
        assert line.count("\n") == 1
        if one not in (PhantombaseError, UsageError):  # of these each place has its own
            assert line.endswith(f". {one.way_out}\n"), name
            assert one.way_out.endswith("."), name
            assert json.loads(told(error, capsys, "--json"))["todo"] == one.way_out
        for path in (
            ".hoodie/timeline/x",
            in_table("p0/x"),
        ):  # of code that knows no table: the call that has one adds it
            below = one("the work failed", path=path)
            below.place("/data/orders")
            assert told(below, capsys).startswith(
                f"error: the work failed; at /data/orders/{path.removeprefix('TABLE/')}"
            )
        own = one("the work failed", todo="Do this.")
        assert told(own, capsys) == "error: the work failed. Do this.\n"
        again = pickle.loads(pickle.dumps(error))  # from a task of Spark
        assert (str(again), "".join(traceback.format_exception_only(again))) == (
            str(error), "".join(traceback.format_exception_only(error)))  # fmt: skip


def test_a_reason_has_no_class_of_python_and_no_path_of_its_own() -> None:
    assert reason_of(PermissionError(13, "Permission denied", "/tmp/b964")) == "Permission denied"
    assert reason_of(KeyError("id")) == "no 'id'"
    assert reason_of(ValueError("two\n lines")) == "two lines"
    assert [fault_of(one) for one in ("NoNodeError", "OutOfMemoryError", "HTTPError")] == [
        "no node", "no memory is left", "http"]  # fmt: skip
    said = "org.apache.spark.SparkException: Job aborted; java.lang.OutOfMemoryError"
    assert without_classes(said) == "Job aborted; no memory is left"
    assert str(StorageError("storage failed", found=reason_of(OSError(28, "No space left")))).endswith("No space left")


def test_each_place_that_raises_an_error_says_more_than_what_and_no_name_of_the_code() -> None:
    """A UsageError says what is expected, or a way out. No text names a class of the code or of a library."""
    classes, alone, named = set[str](), set[str](), set[str]()
    trees = {name: ast.parse(path.read_text()) for name, path in modules().items()}
    for tree in trees.values():
        classes |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    inner = {name for name in classes - TREE.keys() if any(c.isupper() for c in name[1:]) and "_" not in name} - {
        "HFile"
    }
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TREE):
                continue
            where, parts = f"{name}:{node.lineno}", list(ast.walk(node))
            given = {one.arg for one in node.keywords}  # None: `**`
            if node.func.id == "UsageError" and given.isdisjoint({"expected", "todo", None}):
                alone.add(where)
            texts = [c.value for c in parts if isinstance(c, ast.Constant) and isinstance(c.value, str)]
            if any(word.strip(".,;:()`'") in inner for text in texts for word in text.split()):
                named.add(where)
            is_named = any(isinstance(c, ast.Attribute) and c.attr == "__name__" for c in parts)
            is_named |= any(ast.unparse(c) == "repr(error)" for c in parts if isinstance(c, ast.Call))
            if is_named and name.rpartition(".")[2] not in OF_THE_USER:
                named.add(where)
    assert (alone, named) == (set(), set())
