"""Reads of small objects whose answer is checked: the content is whole, and of the version that comes with it."""

from __future__ import annotations

import errno
from typing import Any

import obstore

from ..clocks import READ_AGAIN, retries
from .object_clients import Clients
from .snapshot import is_of


def read_object(clients: Clients, key: str) -> tuple[bytes, Any]:
    """The content of an object, and the store's answer. FileNotFoundError, BaseError, OSError: also if its answers stay
    shorter than the object. A proxy may shorten an answer and its Content-Length alike, and a server may send the tag
    of a newer content. Only the tag shows that, where it is a sum of the content: one that is of nothing is found with
    the same content a second time."""
    store, known = clients.patient, clients.known
    seen: tuple[bytes, str] | None = None
    for _ in retries(READ_AGAIN):
        found = obstore.get(store, key)
        data, tag = bytes(found.bytes()), content_tag(found.meta)
        if not known.sums or is_of(tag, data):
            return data, found
        size = obstore.head(store, key)["size"]
        if len(data) == size and seen == (data, tag):
            known.sums = False
            return data, found
        seen = data, tag
    raise OSError(errno.EIO, f"an answer of {len(data)} bytes for an object of {size}, which its tag is not of")


def content_tag(meta: Any) -> str:
    """The ETag without quotes, which some answers have; "" without one."""
    return (meta.get("e_tag") or "").strip('"')
