"""Readers of Iceberg that judge what is published, each a process in an environment of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset


class IcebergReader:
    """A program that reads the paths of metadata files, a line each, and answers with the path of the rows. Columns to
    leave out follow a path, after tabs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def rows(self, metadata: str, *without: str) -> pa.Table:
        """The rows of a metadata file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join([metadata.removeprefix("file://"), *without]) + "\n")
        self._process.stdin.flush()
        answer = Path(self._process.stdout.readline().strip())
        assert answer.suffix, f"the reader ended: {metadata}"
        return pyarrow.dataset.dataset(answer, format=answer.suffix[1:]).to_table()


@contextmanager
def iceberg_reader(*command: str) -> Iterator[IcebergReader]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield IcebergReader(process)
        assert process.stdin is not None
        process.stdin.close()
