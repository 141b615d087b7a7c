"""Judges log files of one block by what their first bytes have in common with blocks that were judged before.

All log files of a writer begin alike: apart from its instant and its lengths, the front of a block is the same text,
most of it the schema. Of equal fronts `slice_log.check_slice` says the same, so each is judged once. Planning asks
about every log file of a table.

    #HUDI#  S  version type count INSTANT_TIME 17 <instant> other headers  C  content version, count ...  T
               `- opening ----------------------'           `- rest -----'
"""

from __future__ import annotations

import pyarrow as pa

from ..errors import PhantombaseError
from ..format.log_block import MAGIC, BlockKind, scan_blocks
from ..format.log_decode import CONTENT_VERSION
from ..merge.rule import SliceRules
from ..storage.contract import Storage
from ..storage.local import open_little
from .slice_log import check_mergeable

_OPENING, _INSTANT, _REST = slice(14, 34), slice(34, 51), 51
_TYPE = slice(18, 22)
_FIRST_HEADER = bytes(4) + (17).to_bytes(4, "big")
_KINDS = (BlockKind.AVRO_DATA, BlockKind.PARQUET_DATA, BlockKind.DELETE)
_PARQUET = BlockKind.PARQUET_DATA.to_bytes(4, "big")
_VERSION = CONTENT_VERSION.to_bytes(4, "big")
_VERSION_AND_COUNT = 8
_BEHIND_CONTENT = 12
_FRONT_BYTES = 4 << 10


class KnownBlocks:
    """Fronts of blocks that can be merged. May be used by several threads."""

    def __init__(self, storage: Storage, rules: SliceRules) -> None:
        self._storage, self._rules = storage, rules
        self._rests: dict[bytes, tuple[bytes, ...]] = {}
        self._front_bytes = _FRONT_BYTES

    def hold(self, path: str) -> bool:
        """Whether the log file is one whole block that no slice is refused for.

        False: not known, `check_slice` decides. Errors as `Storage.open_input`.
        """
        with open_little(self._storage, path) as source:
            size = source.size()
            front = source.read_at(min(size, self._front_bytes), 0)
            if len(front) <= _REST or front[:6] != MAGIC or not front[_INSTANT].isdigit():
                return False
            # The block ends where the file does, and its length stands at both of its ends.
            length = int.from_bytes(front[6:14], "big")
            if 14 + length != size or int.from_bytes(source.read_at(8, size - 8), "big") != length + 6:
                return False
            rests = self._rests.get(front[_OPENING], ())
            rest = next((r for r in rests if front.startswith(r, _REST)), None)
            if rest is None:
                return self._judge(source, path)
        return _is_sound(front, _REST + len(rest), size)

    def _judge(self, source: pa.NativeFile, path: str) -> bool:
        """Whether the block can be merged and has the usual form; then its front is kept."""
        try:
            (block,) = scan_blocks(source, path)
            if block.kind not in _KINDS:
                return False
            check_mergeable(block, source, self._rules)
        except (PhantombaseError, ValueError):
            return False
        front = source.read_at(block.content_offset - 8, 0)
        if not front[_OPENING].endswith(_FIRST_HEADER):
            return False
        self._rests[front[_OPENING]] = (*self._rests.get(front[_OPENING], ()), front[_REST:])
        self._front_bytes = max(self._front_bytes, block.content_offset + _VERSION_AND_COUNT)
        return True


def _is_sound(front: bytes, at: int, size: int) -> bool:
    """Whether the content whose length stands here has the length and the version that a reader expects."""
    content, begin = int.from_bytes(front[at : at + 8], "big"), at + 8
    if not _VERSION_AND_COUNT <= content <= size - begin - _BEHIND_CONTENT:
        return False
    version, count = front[begin : begin + 4], front[begin + 4 : begin + 8]
    return front[_TYPE] == _PARQUET or (version == _VERSION and len(count) == 4 and count[0] < 128)
