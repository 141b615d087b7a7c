"""How long Arrow keeps memory that was freed, before it gives it back to the system.

Batches of a slice follow one another, and each needs what the one before has freed. Given back after a second, Arrow's
default, the same pages are asked for again and again: a tenth of the processor's time, and threads wait for one another
in the kernel. Kept for longer they add to the peak, so this is for slices that are small beside the memory limit.
"""

from __future__ import annotations

import pyarrow as pa

from phantombase.timeline.view.view import FileSlice

_DECAY_MS, _LONG_DECAY_MS = 1_000, 10_000
_SMALL = 8
"""Times the bytes of the logs, which decoded and merged they stay below."""


def keep_freed(slice_: FileSlice, limit_bytes: int | None) -> None:
    """Before a slice is merged under a memory limit, None for none. It holds for the process, until the next slice."""
    if pa.default_memory_pool().backend_name == "jemalloc":
        is_small = limit_bytes is None or _SMALL * slice_.log_bytes <= limit_bytes
        pa.jemalloc_set_decay_ms(_LONG_DECAY_MS if is_small else _DECAY_MS)
