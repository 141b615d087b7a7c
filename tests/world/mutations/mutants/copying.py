"""Row groups that are copied as bytes: which may be, and what proves that they were."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

_RULES, _FILE = "timeline/parquet/copy_rules", "timeline/parquet/copied_file"
_COPIED, _MADE = "compactor_daemon/stitching/copied", "compactor_daemon/stitching/made"
_STITCH, _ROWS_IN = "compactor_daemon/stitching/stitch", "compactor_daemon/stitching/rows_in"
_UNIT, _TESTS = "copied_file", "copied"

MUTANTS: tuple[Mutant, ...] = (
    (_RULES, "    yield from _unknown(footer)\n", "", _UNIT),
    (_RULES, "    yield from _other_schema(footer, schema)\n", "", _UNIT),
    (_RULES, "    yield from _other_footer(footer, first)\n", "", _UNIT),
    (_RULES, "    yield from _other_calendar(footer)\n", "", _UNIT),
    (_RULES, "    yield from _odd_chunks(footer)\n", "", _UNIT),
    (_RULES, "    yield from _outside(footer)\n", "", _UNIT),
    (_RULES, "    yield from _small(footer, least_bytes)\n", "", _UNIT),
    (_RULES, "for n in (VERSION, CREATED_BY, COLUMN_ORDERS)):", "for n in (VERSION,)):", _UNIT),
    (_RULES, "    return not (have.nullable and not want.nullable) and", "    return", _UNIT),
    (_RULES, "physical_type == _OLD_TIMES", "physical_type == \"\"", _UNIT),
    (_RULES, "if odd or total > footer.end:", "if odd:", _UNIT),
    (_RULES, "and value_of(meta, _CODEC) in _CODECS", "", _UNIT),
    (_RULES, "known.get(field.number) != field.type or field.number <= last", "False", _UNIT),
    (_FILE, "            if old.num_rows:\n", "            if True:\n", _UNIT),
    (_FILE, "        if f.number not in at.CHUNK_FILTER\n", "", _UNIT),
    (_FILE, "        _fetch_ahead(source, footer, number)\n        for column", "        for column", _UNIT),
    (_FILE, "    differs = [] if len(trees) == len(copied.chunks) else", "    differs = [] if True else", _UNIT),
    (_FILE, "        crc = zlib.crc32(piece, crc)\n", "", _UNIT),
    (_MADE, "    if recipe.copy is Copy.REENCODE or recipe.sort_by:", "    if recipe.copy is Copy.REENCODE:", _TESTS),
    (_MADE, "                check_copied(source, staged, copied)\n", "                pass\n", _TESTS),
    (_COPIED, "                    pairs.add(keys.column(RECORD_KEY))\n", "                    pass\n", _TESTS),
    (_COPIED, "    least = 0 if copy is Copy.FORCE else LEAST_GROUP_BYTES\n", "    least = 0\n", _TESTS),
    (_STITCH, "    if options.copy is Copy.FORCE:\n", "    if False:\n", _TESTS),
    (_STITCH, "Copy.TRY if self.options.copy is Copy.FORCE else self.options.copy", "self.options.copy", _TESTS),
    (_ROWS_IN, "        if self._rows - before != footer_rows:", "        if False:", _TESTS),
)  # fmt: skip
