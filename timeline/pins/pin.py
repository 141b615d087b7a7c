"""What a pin says (pure).

    .hoodie/.phantombase/pins/<name>.json = {"version": 1, "axis": "completed", "moment": "20261121090000000",
                                             "seconds": 86400, "holder": "host:1234"}

The state of the table at the moment, and every later one, must stay whole: of each file group the file slice that was
the newest at the moment, and all newer ones, with their log files. `axis`: whether the moment is a completion time, or,
on version 6, a requested time.

A pin counts until `seconds` after its file was last written, both by the storage's clock; a reader at work writes it
again. An expired pin holds nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from ..errors import MalformedError, UsageError
from ..storage.folders import RECORDS

PINS = f"{RECORDS}/pins"
VERSION = 1
COMPLETED, REQUESTED = "completed", "requested"
FIRST = "0"
"""A moment before all others."""
PIN_SECONDS = 86_400
"""How long a pin counts unless its reader says otherwise."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ENDING = ".json"
_TODO = "If no reader needs it, remove it: timeline pins TABLE --release NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """See the module. `holder`: for people, who made it."""

    name: str
    axis: str
    moment: str
    seconds: int
    holder: str

    def __post_init__(self) -> None:
        check_name(self.name)

    @property
    def path(self) -> str:
        """Where it lies, relative to the table base."""
        return pin_path(self.name)

    def encode(self) -> bytes:
        """The content of its file."""
        fields = {name: value for name, value in asdict(self).items() if name != "name"}
        return json.dumps({"version": VERSION, **fields}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPin:
    """A pin as it lies in the table. `written_ms`: by the storage's clock."""

    pin: Pin
    written_ms: int

    def expires_ms(self) -> int:
        """When it stops to count, by the storage's clock."""
        return self.written_ms + self.pin.seconds * 1000

    def is_live(self, now_ms: int) -> bool:
        """`now_ms`: by the storage's clock."""
        return now_ms <= self.expires_ms()


def check_name(name: str) -> None:
    """UsageError: no name of a pin."""
    if not _NAME.fullmatch(name):
        raise UsageError("not the name of a pin", expected="up to 100 letters, digits, . _ -", found=repr(name))


def pin_path(name: str) -> str:
    """Where the pin of a name lies, relative to the table base. UsageError: see `check_name`."""
    check_name(name)
    return f"{PINS}/{name}{_ENDING}"


def name_of(file: str) -> str:
    """The name of the pin in a file of the folder. MalformedError: it is none."""
    if not file.endswith(_ENDING) or not _NAME.fullmatch(file.removesuffix(_ENDING)):
        raise MalformedError("not a pin", path=f"{PINS}/{file}", todo="Remove the file by hand.")
    return file.removesuffix(_ENDING)


def decode_pin(name: str, data: bytes) -> Pin:
    """Inverse of `Pin.encode`. MalformedError: it cannot be read, so that what it holds is not known."""
    try:
        found = json.loads(data)
        if found["version"] != VERSION or found["axis"] not in (COMPLETED, REQUESTED):
            raise ValueError(f"version {found['version']}, axis {found['axis']}")
        if not isinstance(found["moment"], str) or not found["moment"].isdecimal():
            raise ValueError(f"moment {found['moment']!r}")
        return Pin(
            name=name,
            axis=found["axis"],
            moment=found["moment"],
            seconds=int(found["seconds"]),
            holder=str(found["holder"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedError("unreadable pin", path=pin_path(name), found=str(error), todo=_TODO) from error
