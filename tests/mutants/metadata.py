# ruff: noqa: E501
"""The metadata table."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # The metadata table.
    ("writer_hooks/transaction", "            tell(table, change, update)\n", "", "metadata_faults"),
    ("rollback", "        forget(table, plan.target)\n", "", "metadata_faults"),
    ("timeline/metadata_table/commit", "    forget(table, instant)\n", "", "metadata_faults metadata_commit"),
    ("timeline/metadata_table/commit", "    _refuse_compacted(metadata, timeline, found)\n", "", "metadata_commit"),
    ("timeline/metadata_table/commit", "with_meta_columns(without_meta_columns(text))", "text", "metadata_faults"),
    ("timeline/metadata_table/commit", "file_group_index(one[0], len(of_partition))", "0", "metadata_commit metadata_statistics"),
    ("timeline/metadata_table/partitions", "name.startswith(_OF_ROWS) and not moves_rows", "name.startswith(_OF_ROWS)", "metadata_commit"),
    ("timeline/metadata_table/partitions", "        elif name in building:\n            raise being_built(name, where)\n", "", "metadata_commit"),
    ("timeline/metadata_table/update", "(update.upkeep, update.measure) != now", "False", "metadata_commit"),
    ("timeline/metadata_table/update", "len(records[BLOOM_FILTERS]) < _base_files(change.files)", "False", "metadata_commit"),
    ("timeline/metadata_table/update", "        commit.forget(table, instant)\n", "        pass\n", "metadata_faults"),
    ("timeline/metadata_table/update", "if types and _other_types(table, types):", "if False:", "metadata_commit"),
    ("timeline/metadata_table/column_range", "        high = math.nan\n", "        pass\n", "metadata_statistics"),
)  # fmt: skip
