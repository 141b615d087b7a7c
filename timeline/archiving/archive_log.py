"""Writes archive logs (version 6): a log file of Avro blocks, one `HoodieArchivedMetaEntry` for each state file.

    .hoodie/archived/.commits_.archive.<n>_1-0-1    n: above that of all files there

Hudi 0.15 writes a new file for each archiving too, where the storage cannot append. A record has the content of its
state file in the field of its action, and the time at which the file was written: Hudi 1.x uses that of a completed
file as the completion time of the instant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from ..errors import ConflictError, MissingFileError
from ..format.instant import Instant
from ..format.table_config import TableConfig
from ..instants.archived_timeline import archive_log_instants
from ..instants.state_files import StateFile, StateFiles, of_instants
from ..log.encode import archive_block
from ..prefetch import prefetched
from ..storage.contract import Storage, listed_if_there
from ..storage.staged_file import staged_output
from .archived_entry import SCHEMA_TEXT, encode_entry
from .staged import staged_name

RECORDS_IN_BLOCK = 10
"""As Hudi (hoodie.commits.archival.batch)."""
_AT_ONCE = 16
_NAME = re.compile(r"\.commits_\.archive\.(\d+).*")


def archive_logs(storage: Storage, config: TableConfig) -> list[tuple[int, str]]:
    """Number and name of all archive logs, ascending."""
    names = [e.name for e in listed_if_there(storage, config.history_folder) or () if not e.is_folder]
    return sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))


def in_logs_already(storage: Storage, config: TableConfig, active: Sequence[Instant]) -> tuple[Instant, ...]:
    """Those of the active completed instants that the archive holds too: their archiving stopped half-way.

    Each run finishes the one before it, so they are in the newest log, or in the newest ones. MalformedError: a log
    that cannot be read may hold any instant.
    """
    by_key = {(i.requested_time, i.action): i for i in active if i.completed}
    found: set[Instant] = set()
    for _, name in reversed(archive_logs(storage, config)):
        held = archive_log_instants(storage, f"{config.history_folder}/{name}")
        here = {by_key[i.requested_time, i.action] for i in held if (i.requested_time, i.action) in by_key}
        if not here:
            break
        found |= here
    return tuple(i for i in active if i in found)


def write_archive_log(
    storage: Storage,
    config: TableConfig,
    instants: Sequence[Instant],
    files: StateFiles,
    moment: Callable[[int], str],
    check: Callable[[], None],
) -> str:
    """Archives completed instants, none of which is in the archive; returns the new file's name.

    Called under the table lock; `check` raises if it is lost. `moment`: converts a modification time to an instant
    time. Memory: the content of some state files. ConflictError: another process has put the same file.
    """
    folder = config.history_folder
    number = max((n for n, _ in archive_logs(storage, config)), default=0) + 1
    name = f".commits_.archive.{number}_1-0-1"

    def entry(file: StateFile) -> bytes:
        return encode_entry(file.instant, storage.read(file.path), file.path, moment(file.modified_ms))

    with staged_name(storage, ".log") as staged:
        with staged_output(storage, staged) as out:
            for records in _blocks(prefetched(of_instants(files, instants), entry, _AT_ONCE)):
                out.writelines(archive_block(records, SCHEMA_TEXT))
        _place(storage, staged, f"{folder}/{name}", check)
    return name


def _place(storage: Storage, staged: str, final: str, check: Callable[[], None]) -> None:
    made = storage.find(staged)
    if made is None:
        raise MissingFileError("a staged archive log is gone", path=staged, todo="Run again.")
    storage.make_folder(final.rpartition("/")[0])
    check()
    placed = storage.place(staged, final)
    there = storage.find(final)
    if not placed or there is None or there.size != made.size:
        raise ConflictError(
            "another process archives this table",
            path=f"{storage.base_path}/{final}",
            expected="one archiving process at a time, under the table lock",
            todo="Give all processes that archive the same lock, then run again.",
        )


def _blocks(records: Iterator[bytes]) -> Iterator[Sequence[bytes]]:
    while block := list(islice(records, RECORDS_IN_BLOCK)):
        yield block
