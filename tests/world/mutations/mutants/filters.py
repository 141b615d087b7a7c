"""Filters of reads: what they keep, and what is left out before rows are merged."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    (
        "timeline/filter/possible",
        "return all(may_match_together(one, parts) for one in node.parts)",
        "return any(may_match(node, bounds) for bounds in parts)",
        "filter",
    ),
    (
        "timeline/read/table_read",
        "[bounds(file) for file in s.files]",
        "[bounds(file) for file in s.files[:1]]",
        "data_skipping",
    ),
    (
        "timeline/read/table_read",
        "known.get((file.path, column), UNKNOWN)",
        "known.get((file.path, column), Bounds(values=False))",
        "data_skipping",
    ),
    (
        "timeline/metadata_table/column_stats/bounds",
        "all(unit < _SURROGATES for unit in value)",
        "True",
        "column_stats",
    ),
    (
        "timeline/metadata_table/column_stats/bounds",
        'or stats.get("isDeleted")',
        "",
        "column_stats",
    ),
    (
        "timeline/filter/tree",
        "return frozenset().union(*known) if len(known) == len(found) else None",
        "return frozenset().union(*known)",
        "filter",
    ),
    ("timeline/filter/bind", "Op.GE: Op.GT, Op.LT: Op.LE", "Op.GE: Op.GE, Op.LT: Op.LT", "filter"),
    (
        "timeline/filter/evaluate",
        "        return pc.or_kleene(found, pc.is_nan(column))  # NaN is above all numbers\n",
        "        pass\n",
        "filter",
    ),
    (
        "timeline/filter/possible",
        "    return results | ({None} if found.nulls else frozenset())",
        "    return results",
        "filter",
    ),
    (
        "timeline/filter/possible",
        "above = high is None or high > value",
        "above = high is not None and high > value",
        "filter",
    ),
    (
        "timeline/filter/possible",
        "return _chosen(true=below or above, false=equal)",
        "return _chosen(true=not equal, false=equal)",
        "filter",
    ),
    (
        "timeline/read/slice_stream",
        "for table in self._base_tables(self._base_schema, Needed.MERGED):",
        "for table in self._base_tables(self._base_schema, Needed.MATCHING):",
        "filters",
    ),
    (
        "timeline/read/slice_stream",
        "return not self._where.rows(won.rows).num_rows and not self._base_may_match()",
        "return not self._base_may_match()",
        "filters",
    ),
    (
        "timeline/read/slice_stream",
        "return not self._where.rows(won.rows).num_rows and not self._base_may_match()",
        "return not self._where.rows(won.rows).num_rows",
        "filters",
    ),
    ("timeline/read/pruning", "if count >= _SAMPLE_KEYS_MIN and found", "if found", "filters"),
    ("timeline/read/pruning", "        out = set()\n", "        pass\n", "read/data_before_settings"),
    ("timeline/read/pruning", "where = replace(where, keys=None)", "pass", "read/data_before_settings"),
    ("timeline/read/pruning", "        forms.add(folder)\n", "        pass\n", "read/data_before_settings"),
    (
        "timeline/read/pruning",
        "hashes = both if labelled else plain",
        "hashes = plain",
        "read/data_before_settings write/data_before_settings",
    ),
    ("timeline/read/export", "            out.write(_BROKEN_MESSAGE)\n", "            pass\n", "main"),
)
