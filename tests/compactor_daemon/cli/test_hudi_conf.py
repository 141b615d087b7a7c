"""Hudi's names at every entry point: each is followed, named in a warning or refused; no other error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping, PartitionSelection, SortOrder
from phantombase.compactor_daemon.hudi_names import HudiName, NameKind, hudi_names
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.services.hudi_conf import KINDS, command_conf, conf_fields, conf_names, properties
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import LockError, PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.planning.options import ScheduleOptions
from tests.project.every_command import NO_NUMBERS, every_command, offers
from tests.support.places import capture_logs
from tests.support.selection import ALL

COMMANDS = [
    *("archive", "clean", "cluster", "compact", "erase", "maintain", "metadata", "partition-ttl", "replay", "run"),
    *("schedule", "sync"),
]
_NEEDED = {"run": ["--once"], "erase": ["--keys", "keys.txt"], "sync": ["--to", "hive:127.0.0.1:1"]}
"""Arguments without which a command does not begin."""
PLAN = "hoodie.clustering.plan.strategy."


def values(one: HudiName) -> Iterator[Any]:
    """The default, in other letters and with spaces; no text; what is no value; other types."""
    usual = one.agreeing[0] if one.agreeing else "7"
    yield from (usual, f" {usual} ", usual.swapcase(), "", " ", "no such value!", "-1", "9" * 30, "ü\n")
    yield from (True, 3, 2.5, float("nan"), float("inf"))


def built(kind: type, pairs: list[str], files: list[Path] | None = None, **typed: Any) -> Any:
    """The options of a command."""
    fields = conf_fields(kind, command_conf({kind}, pairs, files or [], locks=False).pairs[kind], typed)
    return replace(kind(), **fields, **{name: value for name, value in typed.items() if name not in fields})


def test_a_number_of_every_name_is_read_as_java_reads_it() -> None:
    """`1_0` is 10 in Python alone, and Hudi's jobs end with an error."""
    read = 0
    for name in hudi_names():
        ways: list[Callable[[str], Any]] = [partial(_of_writer, name)]
        ways += [partial(_one_pair, kind, name) for kind in KINDS if name in conf_names(kind)]
        for way in ways:
            if _is_refused(way, "40000010") or _is_refused(way, "40000011") or not _is_refused(way, "many"):
                continue
            read += 1
            assert [text for text in NO_NUMBERS if not _is_refused(way, text)] == [], name
    assert read > 25


def _is_refused(way: Callable[[str], Any], text: str) -> bool:
    with capture_logs():
        try:
            way(text)
        except PhantombaseError:
            return True
        return False


def test_a_value_agrees_as_the_number_that_it_is() -> None:
    one = hudi_names()["hoodie.keep.min.commits"]
    assert one.agreeing == ("20",)
    assert [one.agrees(text) for text in ("20", "20.0", "+20")] == [True] * 3
    assert not any(one.agrees(text) for text in ("2_0", "\N{FULLWIDTH DIGIT TWO}0", "nan", "sNaN", "infinity", ""))


def _of_writer(name: str, text: str) -> Any:
    return writer().conf({name: text}).options


def _one_pair(kind: type, name: str, text: str) -> Any:
    return built(kind, [f"{name}={text}"])


def test_every_value_of_every_name_at_every_entry() -> None:
    """One error of the tree, or a setting, or a warning with the name; never another exception, never silence."""
    job, share = writer(), 1 if ALL else 3
    for number, (name, one) in enumerate(hudi_names().items()):
        for value in islice(values(one), number % share, None, share):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            with capture_logs() as logs:
                try:
                    job.conf({name: value})
                    refused = False
                except PhantombaseError:
                    refused = True
            if one.kind in (NameKind.WISH, NameKind.CLIENT) and not one.agrees(text):
                assert refused or logs[0]["names"] == name, (name, value)
            if one.kind is NameKind.ONLY and not one.agrees(text):
                assert refused, (name, value)
            for kind in KINDS if value in ("", "no such value!", "-1") else ():
                try:
                    built(kind, [f"{name}={value}"])
                except PhantombaseError:
                    continue
                taken = name in str(command_conf({kind}, [f"{name}={value}"], [], locks=False).pairs)
                assert taken or one.agrees(text) or name.endswith((".automatic", "sync.enable")), (kind, name, value)


def test_commands_that_have_options_of_hudi_take_its_names() -> None:
    found = [path[-1] for name, path, command in every_command() if name != "timeline" and offers(command, "--conf")]
    assert sorted({*found} - {"write"}) == COMMANDS
    for _, path, command in every_command():
        if path[-1] in COMMANDS and offers(command, "--conf"):
            assert offers(command, "--hoodie-conf")
            assert offers(command, "--props")


@pytest.mark.parametrize(
    ("kind", "conf", "expected"),
    [
        (
            ClusterOptions,
            {
                f"{PLAN}class": "org.apache.hudi.client.clustering.plan.strategy.SparkSizeBasedClusteringPlanStrategy",
                f"{PLAN}small.file.limit": 314572800,
                f"{PLAN}target.file.max.bytes": 1073741824,
                f"{PLAN}max.bytes.per.group": 2147483648,
                f"{PLAN}max.num.groups": 4,
                f"{PLAN}single.group.clustering.enabled": "false",
                f"{PLAN}sort.columns": "a, b",
                "hoodie.layout.optimize.strategy": "hilbert",
                "hoodie.clustering.plan.partition.filter.mode": "RECENT_DAYS",
                f"{PLAN}daybased.lookback.partitions": 3,
                f"{PLAN}daybased.skipfromlatest.partitions": 1,
                f"{PLAN}partition.selected": "a,b",
            },
            ClusterOptions(
                grouping=Grouping.SIZE,
                small_size=314572800,
                target_size=1 << 30,
                max_groups=4,
                single_group=False,
                sort_by=("a", "b"),
                sort_order=SortOrder.HILBERT,
                partition_filter=PartitionSelection.RECENT_DAYS,
                lookback_partitions=3,
                skip_newest_partitions=1,
                partitions=("a", "b"),
            ),
        ),
        (
            ClusterOptions,
            {
                "hoodie.clustering.plan.partition.filter.mode": "selected_partitions",
                f"{PLAN}cluster.begin.partition": "a",
                f"{PLAN}cluster.end.partition": "b",
                f"{PLAN}partition.regex.pattern": "x.*",
            },
            ClusterOptions(
                partition_filter=PartitionSelection.SELECTED_PARTITIONS,
                begin_partition="a",
                end_partition="b",
                partition_regex="x.*",
            ),
        ),
        (
            ClusterOptions,
            {f"{PLAN}max.bytes.per.group": 1000},
            ClusterOptions(grouping=Grouping.SIZE, max_group_bytes=1000),
        ),
        (CleanOptions, {"hoodie.cleaner.commits.retained": 4}, CleanOptions(retain=4)),
        (CleanOptions, {"hoodie.clean.hours.retained": 4}, CleanOptions(policy=Policy.HOURS, retain=4)),
        (
            CleanOptions,
            {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.commits.retained": 9},
            CleanOptions(policy=Policy.VERSIONS),
        ),
        (
            ArchiveOptions,
            {
                "hoodie.keep.min.commits": 40,
                "hoodie.keep.max.commits": 50,
                "hoodie.clean.commits.retained": 12,
                "hoodie.compact.inline.max.delta.commits": 7,
            },
            ArchiveOptions(min_instants=40, max_instants=50, commits_retained=12, compaction_commits=7),
        ),
        (MetadataOptions, {"hoodie.metadata.compact.max.delta.commits": 3}, MetadataOptions(max_delta_commits=3)),
        (
            ClusterOptions,
            {
                f"{PLAN}target.file.max.bytes": 1 << 30,
                f"{PLAN}small.file.limit": 300 << 20,
                f"{PLAN}sort.columns": "a, b",
                "hoodie.layout.optimize.strategy": "z-order",
            },
            ClusterOptions(target_size=1 << 30, small_size=300 << 20, sort_by=("a", "b"), sort_order=SortOrder.ZORDER),
        ),
        (OutputOptions, {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "true"}, OutputOptions()),
        (ScheduleOptions, {"hoodie.compact.inline.max.delta.commits": 2}, ScheduleOptions(max_delta_commits=2)),
    ],
)
def test_names_of_a_command_are_its_options(kind: type, conf: dict[str, Any], expected: Any, tmp_path: Path) -> None:
    """Typed, or in a properties file."""
    assert built(kind, [f"{name}={value}" for name, value in conf.items()]) == expected
    file = tmp_path / "job.properties"
    file.write_text("# a job\n" + "".join(f"{name} = {value}\n" for name, value in conf.items()))
    assert built(kind, [], [file]) == expected


def test_a_whole_job_may_be_given(tmp_path: Path) -> None:
    """What has no meaning for the command is one warning; what is typed counts more than the file."""
    file = tmp_path / "job.properties"
    file.write_text(
        "hoodie.datasource.write.recordkey.field=id\nhoodie.clean.hours.retained=48\nhoodie.clustering.inline=true\n"
        "hoodie.metadata.index.bloom.filter.enable=false\nhoodie.cleaner.policy=KEEP_LATEST_BY_HOURS\n"
    )
    with capture_logs() as logs:
        assert built(CleanOptions, [], [file]) == CleanOptions(policy=Policy.HOURS, retain=48)
    assert logs[0]["names"].split() == ["hoodie.clustering.inline", "hoodie.datasource.write.recordkey.field"]
    assert built(CleanOptions, ["hoodie.clean.hours.retained=5"], [file]).retain == 5
    over = ["hoodie.clean.policy=KEEP_LATEST_COMMITS"]
    assert built(CleanOptions, over, [file]) == CleanOptions()


@pytest.mark.parametrize(
    ("pairs", "typed"),
    [
        (["hoodie.clean.commits.retained=3", "hoodie.clean.hours.retained=7"], {}),
        (["hoodie.clean.policy=KEEP_LATEST_COMMITS", "hoodie.clean.hours.retained=7"], {}),
        (["hoodie.clean.hours.retained=7"], {"policy": Policy.VERSIONS}),
    ],
)
def test_numbers_of_other_policies_are_named(pairs: list[str], typed: dict[str, Any]) -> None:
    with capture_logs() as logs:
        assert built(CleanOptions, pairs, **typed).policy is not Policy.HOURS
    assert [log["names"] for log in logs] == ["hoodie.clean.hours.retained"]


@pytest.mark.parametrize(
    ("options", "pair", "match"),
    [
        (["--services", "clean", "--sole-writer"], "hoodie.clean.commits.retained=3", None),
        (["--schedule", "--sole-writer"], "hoodie.compact.inline.max.delta.commits=3", None),
        (["--services", "archive", "--sole-writer"], "hoodie.compact.inline.max.delta.commits=3", None),
        (["--services", "archive", "--sole-writer"], "hoodie.compact.inline.max.delta.seconds=3", "--schedule"),
        ([], "hoodie.compact.inline.trigger.strategy=TIME_ELAPSED", "--schedule"),
        ([], "hoodie.clean.commits.retained=3", "does not run: clean"),
        (["--schedule", "--sole-writer"], "hoodie.keep.max.commits=50", "does not run: archive"),
    ],
)
def test_a_daemon_takes_the_names_of_what_it_runs(
    options: list[str], pair: str, match: str | None, tmp_path: Path
) -> None:
    """Also those that another service, which does not run, would read, too; none without an effect."""
    path = str(tmp_path / "t")
    writer(pa.table({"id": ["a"]})).table("t").key("id").upsert(path)
    done = CliRunner().invoke(app, ["run", path, "--once", "--executor", "local", *options, "--conf", pair])
    assert (done.exit_code == 0) is (match is None), done.exception
    assert match is None or match in str(done.exception)


def test_a_daemon_warns_of_what_a_file_says_of_services_that_it_does_not_run(tmp_path: Path) -> None:
    """The file is that of a whole job: what it says of other services is no mistake."""
    path, file = str(tmp_path / "t"), tmp_path / "job.properties"
    writer(pa.table({"id": ["a"]})).table("t").key("id").upsert(path)
    file.write_text(
        "hoodie.clean.commits.retained=3\nhoodie.keep.max.commits=50\nhoodie.compact.inline.max.delta.commits=2"
    )
    with capture_logs() as logs:
        done = CliRunner().invoke(app, ["run", path, "--once", "--executor", "local", "--props", str(file)])
    assert done.exit_code == 0, done.exception
    assert [log["of"] for log in logs if log["event"] == "options_without_effect"] == ["clean archive schedule"]


@pytest.mark.parametrize(
    ("line", "error", "match"),
    [
        ("hoodie.metadata.enable=false", UsageError, "--drop-metadata-table"),
        ("hoodie.clean.failed.writes.policy=NEVER", UsageError, "a command has Hudi's defaults"),
        ("hoodie.client.heartbeat.tolerable.misses=9", UsageError, "a command has Hudi's defaults"),
        ("hoodie.archive.beyond.savepoint=true", UnsupportedError, "no instant is archived behind a savepoint"),
        ("hoodie.clean.commit.retained=3", UsageError, r"Did you mean hoodie\.clean\.commits\.retained\?"),
        ("hoodie.clean.commits.retained=few", UsageError, r"not a value of hoodie\.clean\.commits\.retained"),
        ("hoodie.clean.commits.retained=3\nhoodie.cleaner.commits.retained=4", UsageError, "contradict"),
        ("include=none.properties", UsageError, r"properties file cannot be read; at .*none\.properties"),
        ("include=job.properties", UsageError, "includes itself"),
    ],
)
def test_what_a_file_may_not_say(line: str, error: type[Exception], match: str, tmp_path: Path) -> None:
    file = tmp_path / "job.properties"
    file.write_text(f"{line}\n")
    with pytest.raises(error, match=match):
        built(CleanOptions, [], [file])


_LOCK = "hoodie.write.lock."
_MODE = "hoodie.write.concurrency.mode="
_CONCURRENT = (f"{_MODE}optimistic_concurrency_control", "hoodie.cleaner.policy.failed.writes=LAZY")
_ZOOKEEPER = (
    f"{_LOCK}provider=org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
    f"{_LOCK}zookeeper.url=zk1:2181,zk2",
    f"{_LOCK}zookeeper.base_path=/hudi",
    f"{_LOCK}wait_time_ms=100",
)


def lock(pairs: Sequence[str], file: Path, typed: str | None = None) -> str | None:
    """The lock of a command that gets the pairs, once typed and once in a file."""
    file.write_text("\n".join(pairs))
    found = command_conf({CleanOptions}, [p for p in pairs if "wait" not in p], [], locks=True, lock=typed).lock
    assert command_conf({CleanOptions}, [], [file], locks=True, lock=typed).lock == found
    return found


def test_the_lock_of_a_job_is_that_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "job.properties"
    shared = "zookeeper:zk1:2181,zk2:2181/hudi/"
    assert lock([*_CONCURRENT, *_ZOOKEEPER, f"{_LOCK}zookeeper.lock_key=orders"], file) == f"{shared}orders"
    assert lock([*_CONCURRENT, *_ZOOKEEPER], file) == shared + "{name}"
    assert lock([*_CONCURRENT, *_ZOOKEEPER], file, shared + "{name}") == shared + "{name}"
    in_storage = f"{_LOCK}provider=org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
    assert lock([*_CONCURRENT, in_storage], file) == "storage"
    assert lock([*_CONCURRENT], file, "file:/locks/orders") == "file:/locks/orders"
    assert lock([f"{_MODE}SINGLE_WRITER"], file) is None


@pytest.mark.parametrize(
    ("pairs", "typed", "match"),
    [
        (_CONCURRENT, None, "without a lock"),
        ((f"{_MODE}NON_BLOCKING_CONCURRENCY_CONTROL",), "storage", "not supported"),
        (_ZOOKEEPER, "storage", "--lock"),
        (_ZOOKEEPER[:1] + _ZOOKEEPER[1:2], None, "base_path"),
        ((f"{_LOCK}provider=org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider",), None, "DynamoDB"),
    ],
)
def test_a_lock_that_others_would_not_hold_is_refused(
    pairs: Sequence[str], typed: str | None, match: str, tmp_path: Path
) -> None:
    with pytest.raises((UsageError, UnsupportedError), match=match):
        lock(pairs, tmp_path / "job.properties", typed)


@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in ("replay", "sync")])
def test_a_command_holds_the_lock_of_a_job(command: str, tmp_path: Path) -> None:
    """The servers that a properties file names are asked, and no longer only those of --lock."""
    path, file = str(tmp_path / "t"), tmp_path / "job.properties"
    writer(pa.table({"id": ["a"]})).table("t").key("id").upsert(path)
    file.write_text("\n".join((*_CONCURRENT, *_ZOOKEEPER)).replace("zk1:2181,zk2", "127.0.0.1:1"))
    once = _NEEDED.get(command, [])
    done = CliRunner().invoke(app, [command, path, *once, "--props", str(file)])
    assert isinstance(done.exception, LockError), done.output
    assert "127.0.0.1:1" in str(done.exception)


def test_a_properties_file_is_read_as_hudi_reads_it(tmp_path: Path) -> None:
    """Java's own rules take backslashes away: `schedule` looked for dt=2024-d+, and found nothing to do. Hudi 1.2.0's
    DFSPropertiesConfiguration was asked for each of these lines."""
    file = tmp_path / "job.properties"
    lines = {
        r"a.regex=dt=2024-\d+": ("a.regex", r"dt=2024-\d+"),
        "b.blank = x y \t z ": ("b.blank", "x y z"),
        "c.colon: v": ("c.colon:", "v"),
        "d.space v": ("d.space", "v"),
        r"e.unicode=\u0041": ("e.unicode", r"\u0041"),
        "f.end=a\\": ("f.end", "a\\"),
        "g.empty=": ("g.empty", ""),
        "include=base.properties": ("i.base", "4"),
        "  h.first=3": ("h.first", "3"),
    }
    (tmp_path / "base.properties").write_text("i.base=4\nh.first=2\n")
    file.write_text("\n".join(("# a job", "", *lines)))
    assert properties(file) == dict(lines.values())


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        (["--gate", "3"], "gate"),
        (["--compaction-trigger", "3"], "compaction-trigger"),
        (["--trigger", "num-commits", "--max-delta-seconds", "4"], "max-delta-seconds"),
        (["--trigger", "time-elapsed", "--conf", "hoodie.compact.inline.max.delta.commits=3"], "max-delta-commits"),
        (["--trigger", "num-or-time", "--max-delta-seconds", "4", "--max-delta-commits", "4", "--gate", "3"], None),
    ],
)
def test_options_that_a_request_does_not_use_are_named(words: list[str], idle: str | None, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    writer(pa.table({"id": ["a"]})).table("t").key("id").upsert(path)
    for command in (["schedule", path, "--dry-run"], ["run", path, "--once", "--schedule", "--sole-writer"]):
        given = ["--trigger", "always", *words] if words == ["--gate", "3"] else words
        with capture_logs() as logs:
            done = CliRunner().invoke(app, [*command, *given])
        assert done.exit_code == 0, done.exception
        named = [log["of"] for log in logs if log["event"] == "options_without_effect"]
        assert named[-1:] == ([idle] if idle else [])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_what_it_cannot_do(command: str, tmp_path: Path) -> None:
    """By an error of wrong usage, before it changes anything."""
    path = str(tmp_path / "t")
    writer(pa.table({"id": ["a"]})).table("t").key("id").upsert(path)
    before = sorted(tmp_path.rglob("*"))
    once = _NEEDED.get(command, [])
    for pair in (
        "hoodie.clustering.inline=true",
        "hoodie.clean.policy=KEEP_ALL",
        "hoodie.metadata.enable=false",
        "hoodie.archive.beyond.savepoint=true",
        "no-pair",
    ):
        done = CliRunner().invoke(app, [command, path, *once, "--hoodie-conf", pair])
        assert isinstance(done.exception, UsageError | UnsupportedError), (command, pair, done.output)
    missing = CliRunner().invoke(app, [command, path, *once, "--props", str(tmp_path / "none")])
    assert "properties file cannot be read" in str(missing.exception)
    assert sorted(tmp_path.rglob("*")) == before
