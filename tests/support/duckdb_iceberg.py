"""DuckDB's Iceberg reader in an environment of its own: its extensions come as packages for releases of their own.

As a program: reads the paths of metadata files, a line each, and answers with the path of an Arrow file of the rows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.iceberg_readers import IcebergReader

_RELEASE = "1.5.5"
_HOME = Path.home() / ".cache/phantombase/judge" / f"duckdb-{_RELEASE}"
_PACKAGES = ("duckdb", "duckdb-extensions", "duckdb-extension-iceberg", "duckdb-extension-avro")


def _python() -> Path:
    """Made when it is first asked for."""
    python, ready = _HOME / "bin/python", _HOME / "ready"
    if not ready.exists():
        venv.create(_HOME, with_pip=True)
        names = [f"{name}=={_RELEASE}" for name in _PACKAGES]
        subprocess.run([python, "-m", "pip", "install", "-q", *names, "pyarrow"], check=True)
        ready.touch()
    return python


@contextmanager
def duckdb_reader() -> Iterator[IcebergReader]:
    from tests.support.iceberg_readers import iceberg_reader

    with iceberg_reader(str(_python()), __file__) as reader:
        yield reader


def _serve() -> None:
    import duckdb
    import duckdb_extensions  # type: ignore[import-not-found, unused-ignore]
    import pyarrow as pa

    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        duckdb_extensions.import_extension(name, con=connection)
        connection.execute(f"LOAD {name}")
    out = Path(tempfile.mkdtemp()) / "rows.arrow"
    for line in sys.stdin:
        found: Any = connection.sql(f"SELECT * FROM iceberg_scan('{line.strip()}')").to_arrow_table()
        with pa.OSFile(str(out), "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
            writer.write_table(found)
        print(out, flush=True)


if __name__ == "__main__":
    _serve()
