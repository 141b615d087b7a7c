# ruff: noqa: E501
"""The metadata table."""

from __future__ import annotations

from tests.mutations.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # The metadata table.
    ("writer_hooks/commit/transaction", "            apply_update(table, change, update)\n", "", "attempt/metadata_faults"),
    ("timeline/recovery/rollback", "        forget(table, plan.target)\n", "", "attempt/metadata_faults"),
    ("timeline/metadata_table/commit", "    forget(table, instant)\n", "", "attempt/metadata_faults metadata_table/commit"),
    ("timeline/metadata_table/commit", "    _refuse_compacted(metadata, timeline, found)\n", "", "metadata_table/commit"),
    ("timeline/metadata_table/commit", "with_meta_columns(without_meta_columns(text))", "text", "attempt/metadata_faults"),
    ("timeline/metadata_table/commit", "file_group_index(one[0], len(of_partition))", "0", "metadata_table/commit metadata_table/column_stats"),
    ("timeline/metadata_table/records/partitions", "name.startswith(_OF_ROWS) and not moves_rows", "name.startswith(_OF_ROWS)", "metadata_table/commit"),
    ("timeline/metadata_table/records/partitions", "        elif name in building:\n            raise being_built(name, where)\n", "", "metadata_table/commit"),
    ("timeline/metadata_table/update", "(update.upkeep, update.measure) != now", "False", "metadata_table/commit"),
    ("timeline/metadata_table/update", "len(records[BLOOM_FILTERS]) < _base_files(change.files)", "False", "metadata_table/commit"),
    ("timeline/metadata_table/update", "        commit.forget(table, instant)\n", "        pass\n", "attempt/metadata_faults"),
    ("timeline/metadata_table/update", "if types and _other_types(table, types):", "if False:", "metadata_table/commit"),
    ("timeline/metadata_table/column_stats/column_range", "        high = math.nan\n", "        pass\n", "metadata_table/column_stats"),
)  # fmt: skip
