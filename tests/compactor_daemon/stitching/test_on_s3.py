"""Stitching on an object store: deaths at a sample of its requests, and answers that are lost."""

from __future__ import annotations

import pytest

from phantombase.compactor_daemon.stitching.pending import pending_stitchings
from phantombase.compactor_daemon.stitching.stitch import StitchResult, stitch_table
from phantombase.timeline.errors import UnknownCommitError
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.stitching.options import StitchOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import is_replaced
from phantombase.writer_hooks.write.writer import writer
from tests.support.archived_tables import one_row, rows_at
from tests.support.clustered_tables import COPIED, OUTPUT, TWO
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server
from tests.support.tables import LOCK
from tests.support.written_tables import Rows


def small_files(s3: S3Server, version: int) -> tuple[str, Rows]:
    """Three file groups of a row each, and the rows."""
    url = f"s3://{s3.new_bucket()}/a trip=1%20"
    for number in range(3):
        write = writer(one_row(f"k{number}", number)).table("trips", version=version)
        write.key("id").partition("day").ordering("ts").option(small_file_bytes=0).insert(url)
    return url, rows_at(url)


def stitch(url: str, storage: Storage | None = None, options: StitchOptions = TWO) -> StitchResult:
    return stitch_table(Table.on(storage) if storage else Table.open(url), options, LOCK, output=OUTPUT, threads=1)


def living(url: str) -> int:
    view = Table.open(url).load_view()
    return len([g for g in view.groups if not is_replaced(g, view.facts)])


def forget(url: str) -> None:
    """The heartbeats of what died here: this process lives."""
    table = Table.open(url)
    for pending in pending_stitchings(table, table.load_timeline()):
        table.storage.delete(heartbeat_path(pending.time))


@pytest.mark.parametrize(("version", "options"), [deep(6, TWO), deep(9, TWO), (9, COPIED)])
def test_it_is_finished_after_a_death_at_any_request(version: int, options: StitchOptions, s3: S3Server) -> None:
    """Every seventeenth call; the next run goes on where the last one died."""
    url, rows = small_files(s3, version)
    for number in range(0, 400, 17):
        try:
            stitch(url, HookedStorage(Table.open(url).storage, die_at(number)), options)
            ended = True
        except ProcessDied:
            ended = False
        assert rows_at(url) == rows
        forget(url)
        if ended:
            break
    assert ended
    assert living(url) == 1


def test_a_commit_whose_answer_is_lost_waits_for_it(s3: S3Server) -> None:
    """It may come yet: no process takes the stitching back before that must be over, or completes it twice."""
    url, rows = small_files(s3, 9)

    def lost(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".replacecommit"):
            raise UnknownCommitError("no answer", path=call.path)
        return call.do()

    with pytest.raises(UnknownCommitError):
        stitch(url, HookedStorage(Table.open(url).storage, lost))
    assert rows_at(url) == rows
    assert (stitch(url).done, stitch(url).finished) == (None, ())  # at work, for all that is known
    forget(url)
    assert len(stitch(url).finished) == 1
    assert rows_at(url) == rows
    completed = [i for i in Table.open(url).load_timeline().completed if i.action == "replacecommit"]
    assert (len(completed), living(url)) == (1, 1)
