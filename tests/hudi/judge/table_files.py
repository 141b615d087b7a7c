"""Files of a table as the judge looks at them, on a disk or on S3: not by the code that is judged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import javaproperties
import obstore
from obstore.store import S3Store

TablePath: TypeAlias = Path | str
"""A folder, or an `s3a://` URL, whose server the environment names."""


def properties(table: TablePath) -> Mapping[str, str]:
    """What hoodie.properties says."""
    name = ".hoodie/hoodie.properties"
    if isinstance(table, Path):
        return javaproperties.loads((table / name).read_text())
    store, prefix = _store(table)
    return javaproperties.loads(bytes(obstore.get(store, f"{prefix}/{name}").bytes()).decode())


def names(table: TablePath, folder: str) -> list[str]:
    """The names of files in a folder; none if there is no such folder."""
    if isinstance(table, Path):
        return [file.name for file in (table / folder).glob("*")]
    store, prefix = _store(table)
    found = obstore.list_with_delimiter(store, f"{prefix}/{folder}")["objects"]
    return [file["path"].rpartition("/")[2] for file in found]


def copy_on_s3(table: str, to: str) -> None:
    """Copies every object of a table, except the marks of folders."""
    store, prefix = _store(table)
    _, target = _store(to)
    for chunk in obstore.list(store, prefix):
        for found in chunk:
            if found["size"] or obstore.list_with_delimiter(store, found["path"])["objects"] == []:
                obstore.copy(store, found["path"], f"{target}/{found['path'].removeprefix(prefix + '/')}")


def _store(url: str) -> tuple[S3Store, str]:
    bucket, _, prefix = url.partition("://")[2].partition("/")
    return S3Store(bucket, client_options={"allow_http": True}), prefix
