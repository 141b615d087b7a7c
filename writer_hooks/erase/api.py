"""Erases keys of a list, in Python: `phantombase.erase`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.locks.table_lock import check_writers_known
from phantombase.timeline.option import path_text, spelled
from phantombase.timeline.table.table import Table

from ..engine.arrow_source import in_arrow
from ..options import WriteOptions
from .erase import Erased, EraseOptions, erase_keys
from .key_list import keys_of_rows, read_keys


@spelled
def erase(
    table: Table | str | os.PathLike[str],
    keys: Any,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    options: EraseOptions | None = None,
    writes: WriteOptions | None = None,
    execute: ExecuteOptions | None = None,
    output: OutputOptions | None = None,
    attempt: AttemptOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Erased:
    """Erases keys: no base or log file of the table holds them afterwards. `keys`: the path of a file (see
    `compactor-daemon erase --help`), or rows with the key columns that are, or give, an Arrow table. With the partition
    columns a key is erased in its partition only. `lock`: that all writers share; `sole_writer`: no other process
    writes. `writes`: the options of the table's writers, such as its buckets. What is refused is in `left` of the
    result. `storage_options`: see `read`. UsageError: neither lock nor sole_writer, or both (a dry run needs none); or
    no list of keys of this table. After any other error the next call continues."""
    if not dry_run:
        risk = "The rows of a write that is under way may keep the keys."
        check_writers_known(lock, sole_writer, "erase", risk, names="lock= and sole_writer=True")
    opened = table if isinstance(table, Table) else Table.open(path_text(table), storage_options)
    is_path = isinstance(keys, str | os.PathLike)
    asked = read_keys(Path(keys), opened) if is_path else keys_of_rows(in_arrow(keys), opened)
    own = writes or WriteOptions()
    return erase_keys(
        opened,
        asked,
        lock=lock,
        options=own if output is None else replace(own, output=output),
        erase=options,
        execute=execute,
        attempt=attempt,
        dry_run=dry_run,
    )
