"""Hudi's write markers: they name the files that a pending instant may have made. Hudi's rollback reads them.

    direct           .hoodie/.temp/<t>/<partition>/<file name>.marker.<CREATE|MERGE|APPEND>, empty files
    timeline server  .hoodie/.temp/<t>/MARKERS.type (text) and MARKERS0, MARKERS1, ...: the same paths, one a line

A marker is made before its file and removed after the instant is completed or rolled back. Base files have CREATE or
MERGE; log files APPEND on version 6 and CREATE on versions 8 and 9, where each delta commit has its own log files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ..errors import MalformedError, UnsupportedError
from ..format.layout import Layout, Slicing
from ..storage.contract import Storage
from ..storage.folders import HOODIE, inside_table

_MARKER = re.compile(r"(?:(?P<partition>.+)/)?(?P<file>[^/]+)\.marker\.(?P<kind>CREATE|MERGE|APPEND)")
TYPE_FILE = "MARKERS.type"
"""Says which form the markers beside it have."""
TIMELINE_SERVER = "TIMELINE_SERVER_BASED"
"""Its content where a timeline server makes them."""
_LISTS = re.compile(r"MARKERS\d+")


class MarkerKind(Enum):
    """What the write does with the file."""

    CREATE = "CREATE"
    MERGE = "MERGE"
    APPEND = "APPEND"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One marked file: its partition ("" in a non-partitioned table), its name, and what the write does with it."""

    partition: str
    file: str
    kind: MarkerKind

    @property
    def path(self) -> str:
        """The marked file, relative to the table base."""
        return f"{self.partition}/{self.file}" if self.partition else self.file

    @property
    def text(self) -> str:
        """The marker as it is written: inverse of `parse`."""
        return f"{self.path}.marker.{self.kind.value}"

    @staticmethod
    def parse(text: str, where: str) -> Marker:
        """The marker of a path below the marker folder; MalformedError names `where` it is."""
        match = _MARKER.fullmatch(text)
        if match is None or not inside_table(text):
            raise MalformedError(
                "not a write marker",
                path=where,
                expected="[<partition>/]<file>.marker.<CREATE|MERGE|APPEND>",
                found=repr(text),
                todo="If it is not Hudi's, remove it: with it, the files of a pending write cannot be determined.",
            )
        return Marker(partition=match["partition"] or "", file=match["file"], kind=MarkerKind(match["kind"]))


def marker_folder(instant: str) -> str:
    """The folder of an instant's markers, in all table versions."""
    return f"{HOODIE}/.temp/{instant}"


def log_marker_kind(layout: Layout) -> MarkerKind:
    """The kind of a log file's marker."""
    return MarkerKind.APPEND if layout.slicing is Slicing.BY_BASE_INSTANT else MarkerKind.CREATE


def make_marker(storage: Storage, instant: str, marker: Marker) -> None:
    """Makes a direct marker; success if it exists already."""
    storage.put_if_absent(f"{marker_folder(instant)}/{marker.text}", b"")


def list_markers(storage: Storage, instant: str) -> list[Marker]:
    """Every marker of an instant, in either form; empty if there are none.

    MalformedError: other files lie among them. UnsupportedError: a later marker type.
    """
    return sorted(set(_markers(storage, marker_folder(instant))), key=lambda m: (m.path, m.kind.value))


def _markers(storage: Storage, folder: str) -> Iterator[Marker]:
    for path, entry in storage.list_below(folder):
        where = f"{folder}/{path}"
        if entry.name.endswith(".crc"):
            continue
        if path == TYPE_FILE:
            kind = storage.read(where).decode(errors="replace").strip()
            if kind not in ("", TIMELINE_SERVER):  # empty: its writer was killed while it made the file
                raise UnsupportedError("unknown type of write markers", path=where, found=kind)
        elif _LISTS.fullmatch(path):
            lines = storage.read(where).decode(errors="replace").splitlines()
            yield from (Marker.parse(line, where) for line in lines if line)
        else:
            yield Marker.parse(path, where)


def delete_markers(storage: Storage, instant: str) -> None:
    """Removes the markers of an instant; success if there are none."""
    storage.delete_folder(marker_folder(instant))
