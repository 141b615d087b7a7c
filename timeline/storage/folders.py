"""Folders of a table that belong to Hudi or phantombase, and paths inside them (pure)."""

from __future__ import annotations

import re

HOODIE = ".hoodie"
"""Hudi's folder in a table, relative to the base path."""

METADATA_FOLDER = f"{HOODIE}/metadata"
"""Base path of the metadata table, relative to that of its data table."""

RECORDS = f"{HOODIE}/.phantombase"
"""phantombase's folder inside it; Hudi ignores it."""

HEARTBEATS = f"{HOODIE}/.heartbeat"
"""One object for each instant in progress, Hudi's and phantombase's."""

RECORD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A name that users give to a record: of a stream, of a pin."""

AFTER_INSTANTS = ":"
"""Sorts after all digits: in that folder the records of instants come before everything else."""

TEMPORARY = f"{RECORDS}/tmp"
"""Files being written, and test files. A compaction run removes those of killed processes."""

WRITES = f"{RECORDS}/writes"
"""Writes stage their files here: a folder for each instant."""

ROWS = f"{RECORDS}/rows"
"""Rows of writes between two steps: a folder for each running write or task, `<ms since the epoch>-<random>`. Those of
a first write are there before its table is made."""

CLUSTERINGS = f"{RECORDS}/clusterings"
"""Clusterings stage their files here before their plan is visible: a folder for each run."""


BUILDS = f"{RECORDS}/metadata"
"""Log files of a metadata table that is being built, before it is visible: a folder for each run."""


def staged_folder(instant: str) -> str:
    return f"{WRITES}/{instant}"


def inside_table(path: str) -> bool:
    """Whether a path, relative to the table or a folder in it, is inside that folder."""
    return not path.startswith("/") and "\0" not in path and ".." not in path.split("/")


def as_uri(base_path: str) -> str:
    """The base path of a table as Hudi's records spell it."""
    return base_path if "://" in base_path else f"file:{base_path}"


def join(partition: str, name: str) -> str:
    """A file's path relative to the table base; "" is the partition of a non-partitioned table."""
    return f"{partition}/{name}" if partition else name


def marker_folder(instant: str) -> str:
    """The folder of an instant's markers, in all table versions."""
    return f"{HOODIE}/.temp/{instant}"
