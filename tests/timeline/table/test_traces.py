"""Hudi's write markers in both forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.timeline.errors import MalformedError, UnsupportedError
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.traces import (
    Marker,
    MarkerKind,
    delete_markers,
    list_markers,
    log_marker_kind,
    make_marker,
)

T = "20260101000000000"
BASE = "f-0_1-2-3_20260101000000000.parquet"
LOG = ".f-0_20250101000000000.log.2_1-2-3"
FOLDER = f".hoodie/.temp/{T}"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """An empty table."""
    return LocalStorage(str(tmp_path))


def test_direct_markers_lie_under_hudis_names(storage: LocalStorage) -> None:
    """Empty files; made twice is made once; nested partitions and none; checksum files beside them."""
    markers = [
        Marker(partition="", file=LOG, kind=MarkerKind.APPEND),
        Marker(partition="a=1/b=ä ö", file=BASE, kind=MarkerKind.CREATE),
        Marker(partition="a=1/b=ä ö", file=BASE, kind=MarkerKind.MERGE),
    ]
    assert list_markers(storage, T) == []
    for marker in (*markers, markers[0]):
        make_marker(storage, T, marker)
    assert storage.find(f"{FOLDER}/{LOG}.marker.APPEND") is not None
    assert storage.read(f"{FOLDER}/a=1/b=ä ö/{BASE}.marker.CREATE") == b""
    storage.put_if_absent(f"{FOLDER}/.{LOG}.marker.APPEND.crc", b"crc")
    assert list_markers(storage, T) == markers
    delete_markers(storage, T)
    delete_markers(storage, T)
    assert storage.find(FOLDER) is None


def test_markers_of_hudis_timeline_server(storage: LocalStorage) -> None:
    """Lists of paths in several files; an empty type file is one being made."""
    for kind in (b"TIMELINE_SERVER_BASED", b"TIMELINE_SERVER_BASED\n", b""):
        storage.overwrite(f"{FOLDER}/MARKERS.type", kind)
        storage.overwrite(f"{FOLDER}/MARKERS0", f"p/{BASE}.marker.CREATE\n{LOG}.marker.APPEND\n".encode())
        storage.overwrite(f"{FOLDER}/MARKERS11", f"q/{BASE}.marker.MERGE\np/{BASE}.marker.CREATE\n".encode())
        assert [(m.path, m.kind.value) for m in list_markers(storage, T)] == [
            (LOG, "APPEND"),
            (f"p/{BASE}", "CREATE"),
            (f"q/{BASE}", "MERGE"),
        ]


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("MARKERS.type", b"DIRECTLY", UnsupportedError),
        ("MARKERS0", b"p/x.parquet.marker.CREATE\ntorn", MalformedError),
        ("MARKERS0", b"../x.parquet.marker.CREATE", MalformedError),
        ("MARKERS0", b"/x.parquet.marker.CREATE", MalformedError),
        ("p/x.parquet.marker.WRITE", b"", MalformedError),
        ("p/notes.txt", b"", MalformedError),
    ],
)
def test_what_is_no_marker_is_an_error(storage: LocalStorage, name: str, data: bytes, error: type[Exception]) -> None:
    """A file that is not understood could be one that must be rolled back."""
    storage.put_if_absent(f"{FOLDER}/{name}", data)
    with pytest.raises(error, match=name.replace(".", r"\.")):
        list_markers(storage, T)


def test_log_files_are_marked_as_their_version_does() -> None:
    """Appended to a slice, or created by their own delta commit."""
    assert [log_marker_kind(Layout.of(v)).value for v in (6, 8, 9)] == ["APPEND", "CREATE", "CREATE"]
