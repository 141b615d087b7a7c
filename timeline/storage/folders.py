"""Folders of a table that are Hudi's or ours, and paths inside them (pure)."""

from __future__ import annotations

HOODIE = ".hoodie"
"""The table's own folder, relative to its base path."""


RECORDS = f"{HOODIE}/.phantombase"
"""Our folder in it; Hudi looks at nothing in there."""


TEMPORARY = f"{RECORDS}/tmp"
"""Files being written, or tried out. Those of killed processes stay until a compaction run finds them abandoned."""


WRITES = f"{RECORDS}/writes"
"""Where our writes stage their files: a folder for each instant."""


def staged_folder(instant: str) -> str:
    """Where one write stages its files."""
    return f"{WRITES}/{instant}"


def inside_table(path: str) -> bool:
    """Whether a path of the table's own files stays below the folder it is relative to."""
    return not path.startswith("/") and "\0" not in path and ".." not in path.split("/")


def join(partition: str, name: str) -> str:
    """A file's path relative to the table base; "" is the partition of a non-partitioned table."""
    return f"{partition}/{name}" if partition else name
