"""What a service did (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDone:
    """`what`: in one line, also why nothing was to do; or the error, if `failed`.

    `instants`: the clean, clusterings, archived instants, or those that served the metadata table. `files`,
    `bytes`: files of the table, or of its metadata table, that were removed; bytes of those.
    """

    service: Service
    what: str
    instants: int = 0
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failed: bool = False
