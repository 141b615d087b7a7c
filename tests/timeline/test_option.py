"""Options that never end, or cannot be meant, are refused by name before anything is done."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import Field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.failures import Failure, RetryOptions, Waits, readiness
from phantombase.compactor_daemon.cli.option_flags import ATTEMPT, EXECUTE, OUTPUT, offers
from phantombase.compactor_daemon.daemon.dispatch import Rules
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions
from phantombase.compactor_daemon.unit_of_work import Limit
from phantombase.timeline.codec.output_options import Codec, OutputOptions, parse_bytes, print_bytes
from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.heartbeat import EXPIRY_S
from phantombase.timeline.option import NUMBERS, decimal_number, whole_number
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.strategies import Strategy
from phantombase.timeline.read.table_read import Query, ReadOptions
from phantombase.timeline.terminal.option_group import Only, type_of, value_of
from phantombase.writer_hooks.options import CompactionOptions, WriteOptions
from tests.project.every_command import NO_NUMBERS, every_command
from tests.support.places import ROOT
from tests.support.selection import for_each

NEVER = (math.inf, math.nan)
PACKAGES = ("timeline", "compactor_daemon", "writer_hooks", "phantombase", "pyspark_phantombase")


def _zookeeper(**given: Any) -> ZooKeeperOptions:
    return ZooKeeperOptions(hosts="a:1", **given)


REFUSED: list[tuple[Callable[..., Any], str, tuple[float, ...]]] = [
    (WriteOptions, "retries", (-1, math.nan)),
    (WriteOptions, "buckets", (0, -1)),
    (WriteOptions, "slots", (0, -1)),
    (WriteOptions, "file_bytes", (0, -1)),
    (WriteOptions, "small_file_bytes", (-1,)),
    (WriteOptions, "batch_bytes", (0,)),
    (WriteOptions, "heartbeat_s", (0, -1, 120, *NEVER)),
    (WriteOptions, "heartbeat_expiry_s", (0, 30, 29, *NEVER)),
    (CompactionOptions, "limit_s", (-1, *NEVER)),
    (RetryOptions, "retries", (-1,)),
    (RetryOptions, "backoff_s", (0, -1, 3601, *NEVER)),
    (RetryOptions, "backoff_max_s", (0, 9, *NEVER)),
    (AttemptOptions, "foreign_grace_s", (-1, *NEVER)),
    (AttemptOptions, "foreign_poll_s", (-1, *NEVER)),
    (AttemptOptions, "heartbeat_s", (0, 120, *NEVER)),
    (AttemptOptions, "heartbeat_expiry_s", (0, 30, *NEVER)),
    (AttemptOptions, "barrier_s", (-1, *NEVER)),
    (AttemptOptions, "barrier_poll_s", (-1, *NEVER)),
    (AttemptOptions, "claim_wait_s", (-1, *NEVER)),
    (AttemptOptions, "redo_max", (0,)),
    (OutputOptions, "row_group_rows", (0,)),
    (OutputOptions, "batch_rows", (0,)),
    (OutputOptions, "memory_limit", (0,)),
    (ExecuteOptions, "threads", (0, -1)),
    (Rules, "max_concurrent", (0,)),
    (Rules, "poll_s", (0, *NEVER)),
    (Rules, "sweep_s", (0, *NEVER)),
    (_zookeeper, "session_timeout_s", (0, *NEVER)),
]


@for_each((make, name, value) for make, name, values in REFUSED for value in values)
def test_what_never_ends_or_cannot_be_meant_is_refused(make: Callable[..., Any], name: str, value: float) -> None:
    """The error names the option, and what was found."""
    with pytest.raises(UsageError) as error:
        make(**{name: value})
    assert name.replace("_", "-") in error.value.what
    assert f"{value:g}" in (error.value.found or "")


def _every_option() -> Iterator[tuple[type, str]]:
    """Of all dataclasses of the packages that have a field with help, but those of commands alone."""
    seen: set[type] = set()
    for package in PACKAGES[:3]:
        for found in walk_packages([str(ROOT / package)], f"phantombase.{package}."):
            if ".cli." in found.name:
                continue
            for kind in vars(import_module(found.name)).values():
                if (
                    isinstance(kind, type)
                    and is_dataclass(kind)
                    and ".cli." not in kind.__module__
                    and kind not in seen
                ):
                    seen.add(kind)
                    every: tuple[Field[Any], ...] = fields(kind)
                    if any("help" in one.metadata for one in every):
                        yield from ((kind, one.name) for one in every if one.init)


def test_a_value_of_another_kind_is_refused() -> None:
    """Else the text `false` counts as true, and a policy or a query that is given as text as none of those that are."""
    asked = [*_every_option()]
    assert len(asked) > 150
    other = {"filter", "notify", "services", "lock", "storage_option", "older_than", "properties"}
    for kind, name in asked:
        if name not in other:
            with pytest.raises(UsageError, match=f"not a value of {name.replace('_', '-')}"):
                kind(**{name: object()})


def test_texts_are_members_and_single_values_tuples(tmp_path: Path) -> None:
    assert ReadOptions(query="READ_OPTIMIZED", columns="id") == ReadOptions(  # type: ignore[arg-type]
        query=Query.READ_OPTIMIZED, columns=("id",)
    )
    assert ScheduleOptions(strategies="day-based").strategies == (Strategy.DAY_BASED,)  # type: ignore[arg-type]
    assert WriteOptions(buckets=2, bucket_fields=["a"]).bucket_fields == ("a",)  # type: ignore[arg-type]
    assert OutputOptions(spill_dir=tmp_path).spill_dir == str(tmp_path)  # type: ignore[arg-type]
    for make in (
        lambda: ReadOptions(data_skipping="false"),  # type: ignore[arg-type]
        lambda: ReadOptions(limit=True),
        lambda: ReadOptions(limit=2.5),  # type: ignore[arg-type]
        lambda: ReadOptions(columns=(1,)),  # type: ignore[arg-type]
        lambda: ReadOptions(query="snap"),  # type: ignore[arg-type]
        lambda: WriteOptions(output="gzip"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match="not a value of"):
            make()
    with pytest.raises(UsageError, match="no column is asked for"):
        ReadOptions(columns=())
    with pytest.raises(UsageError, match="not a time limit"):
        Limit(math.nan)


def test_a_heartbeat_slower_than_hudi_waits_is_refused_whatever_we_wait() -> None:
    """Hudi's writers do not know our expiry: they would roll the write back."""
    with pytest.raises(UsageError, match="heartbeat-s"):
        WriteOptions(heartbeat_s=EXPIRY_S, heartbeat_expiry_s=10 * EXPIRY_S)


def test_the_wait_after_a_thousand_failures_is_the_longest_one() -> None:
    """Doubling ends before a float does."""
    failed = [Failure(at_ms=0, error="X", what="x", who="")] * 2000
    assert readiness(failed, 0, RetryOptions(retries=3000)) == Waits(3_600_000)


@offers
def _command(
    output: OutputOptions = OUTPUT,
    attempt: Annotated[AttemptOptions, Only("claim_wait_s")] = ATTEMPT,
    execute: Annotated[ExecuteOptions, Only("threads", "spark_conf")] = EXECUTE,
) -> None:
    _received.append((output, attempt, execute))


_received: list[tuple[OutputOptions, AttemptOptions, ExecuteOptions]] = []


def _invoke(*arguments: str) -> tuple[OutputOptions, AttemptOptions, ExecuteOptions]:
    app = typer.Typer()
    app.command()(_command)
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None:
        raise result.exception
    return _received[-1]


def test_a_command_gets_the_options_of_several_dataclasses() -> None:
    """Each as a dataclass, what is not given by default; Hudi's names stand for the same options."""
    assert _invoke() == (OUTPUT, ATTEMPT, EXECUTE)
    typed = _invoke(
        *["--memory-limit", "64m", "--codec", "gzip", "--wait", "3", "--threads", "2", "--spark-conf", "spark.a=b=c"]
    )
    output = OutputOptions(codec=Codec.GZIP, memory_limit=64 << 20)
    execute = ExecuteOptions(threads=2, spark_conf=(("spark.a", "b=c"),))
    assert typed == (output, AttemptOptions(claim_wait_s=3.0), execute)
    assert _invoke("--conf", "hoodie.parquet.compression.codec=gzip", "--memory-limit", "64m")[0] == output


def test_an_option_given_twice_with_different_values_is_refused() -> None:
    """Under its own name and under Hudi's."""
    with pytest.raises(UsageError, match="contradict"):
        _invoke("--codec", "zstd", "--conf", "hoodie.parquet.compression.codec=gzip")


def _options() -> Iterator[tuple[type, Field[Any]]]:
    """Every option of every option dataclass, also one that only a file sets."""
    assert every_command()  # their modules are loaded now
    kinds: list[type] = []
    more: list[type] = [object]
    while more:
        below: list[list[type]] = [type.__subclasses__(kind) for kind in more]
        more = [kind for found in below for kind in found]
        kinds += more
    for kind in dict.fromkeys(kinds):
        if str(kind.__module__).startswith("phantombase.") and is_dataclass(kind):
            every: tuple[Field[Any], ...] = fields(kind)
            for one in every:
                if one.metadata.get("help"):
                    yield kind, one


def test_every_number_of_every_option_is_read_alike() -> None:
    """As Java reads it, and Hudi: `int("1_0")` is 10 in Python alone."""
    found = [(kind, one) for kind, one in _options() if type_of(kind, one)[0] in NUMBERS]
    assert len(found) > 60
    for kind, one in found:
        for text in NO_NUMBERS:
            with pytest.raises(UsageError, match="--x"):
                value_of(kind, one, text, "--x")
        assert value_of(kind, one, str(one.metadata["least"] or 1), "--x") is not None
        if one.name.endswith("_s"):
            with pytest.raises(UsageError, match="--x must be at most"):
                value_of(kind, one, str(2**63 - 1), "--x")


def test_every_option_is_read_by_more_than_its_checks() -> None:
    """An option that no code reads has no effect."""
    read: set[str] = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        checks = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == "__post_init__"]
        checked = {id(node) for one in checks for node in ast.walk(one)}
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and id(node) not in checked)
        read |= {node.attr for node in nodes if isinstance(node.ctx, ast.Load)}
    found = list(_options())
    assert len(found) > 130
    assert [(kind.__name__, one.name) for kind, one in found if one.name not in read] == []


def test_no_command_lets_its_parser_read_numbers() -> None:
    """Typer reads them as Python does."""
    read = {
        (app, *path, *param.opts)
        for app, path, command in every_command()
        for param in command.params
        if param.type_descriptor.annotation in NUMBERS and param.type_descriptor.parameter_info.parser is None
    }
    assert not read


def test_numbers() -> None:
    whole = {"7": 7, "-7": -7, "+7": 7, "007": 7, str(2**63 - 1): 2**63 - 1, str(-(2**63)): -(2**63)}
    assert {text: whole_number(text) for text in whole} == whole
    decimal = {"0.5": 0.5, ".5": 0.5, "5.": 5.0, "1e-05": 1e-05, "-2": -2.0}
    assert {text: decimal_number(text) for text in decimal} == decimal


def test_a_size_is_exact() -> None:
    """A float of this size has no odd values."""
    assert parse_bytes(str(2**53 + 1)) == 2**53 + 1


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 10, 1536, 64 << 20, 1 << 30, 3 << 40])
def test_a_size_is_shown_as_it_may_be_typed(size: int) -> None:
    """In the largest unit that gives a whole number."""
    assert parse_bytes(print_bytes(size)) == size
    assert print_bytes(64 << 20) == "64m"
