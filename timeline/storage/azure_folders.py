"""Folders that Azure keeps as things of their own; elsewhere a folder is only a part of names.

A store with a hierarchical namespace has directories: its listings name them, and obstore leaves them out and says that
there is no such object. Hadoop marks an empty folder of another store by an empty blob of its name.
"""

from __future__ import annotations

import obstore

from .access.object_url import AZURE
from .object_clients import Clients

_MARKER = "hdi_isfolder"
_DIRECTORY = "x-ms-resource-type"
"""The header that obstore's error quotes."""


def is_marker(clients: Clients, key: str) -> bool:
    """Whether a folder is kept under this key: a directory, or a marker."""
    if clients.cloud is not AZURE:
        return False
    try:
        return obstore.get(clients.patient, key).attributes.get(_MARKER) == "true"
    except FileNotFoundError as error:
        return is_directory(error)


def is_directory(error: BaseException | None) -> bool:
    """Whether an object is missing because it is a directory."""
    return _DIRECTORY in str(error)
