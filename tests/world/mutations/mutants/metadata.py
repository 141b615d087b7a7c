# ruff: noqa: E501
"""The metadata table."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # The metadata table.
    ("writer_hooks/commit/transaction", "            apply_update(table, change, update, section)\n", "", "metadata_faults"),
    ("timeline/recovery/rollback", "        forget(table, plan.target, section)\n", "", "metadata_faults"),
    ("timeline/metadata_table/commit", "    _forget(metadata, timeline, instant, section)\n    timeline =", "    timeline =", "metadata_faults commit"),
    ("timeline/metadata_table/commit", "    _refuse_compacted(metadata, timeline, found)\n", "", "commit"),
    ("timeline/metadata_table/commit", "with_meta_columns(without_meta_columns(text))", "text", "metadata_faults"),
    ("timeline/metadata_table/commit", "file_group_index(one[0], len(slices))", "0", "commit column_stats"),
    ("timeline/metadata_table/records/partitions", "name.startswith(_OF_ROWS) and not moves_rows", "name.startswith(_OF_ROWS)", "commit"),
    ("timeline/metadata_table/records/partitions", "        elif name in building:\n            raise being_built(name, where)\n", "", "commit"),
    ("timeline/metadata_table/update", "(update.upkeep, update.measure) != now", "False", "commit"),
    ("timeline/metadata_table/update", "len(records[BLOOM_FILTERS]) < _base_files(change.files)", "False", "commit"),
    ("timeline/metadata_table/update", "        commit.forget(table, instant, section)\n", "        pass\n", "metadata_faults"),
    ("timeline/metadata_table/update", "if types and _other_types(table, types):", "if False:", "commit"),
    ("timeline/metadata_table/records/combine", "_unscaled if _is_decimal(older, newer) else _java_order", "_java_order", "metadata_table/read"),
    # The record index.
    ("writer_hooks/index/assign_step", "            hits = [living(self.work, partition, pa.concat_tables(hits))] if hits else []\n", "", "index/record_index"),
    ("writer_hooks/commit/transaction", "if change.knows_keys and self._others(table, everywhere=mine.everywhere):", "if False:", "index/record_index"),
    ("writer_hooks/files/key_notes", "slice_ is None or may_delete(storage, rule.marker, slice_)", "slice_ is None", "index/record_index"),
    ("writer_hooks/files/stager", "notes.unknown if self._work.notes_keys else NOT_NOTED", "notes.unknown", "index/record_index"),
    ("writer_hooks/write/rows", "options.buckets is not None or write.moved_keys is MovedKeys.MOVE", "options.buckets is not None", "index/record_index"),
    ("timeline/metadata_table/record_index", "all(_OF_ALL.fullmatch(file_id) for file_id in groups)", "True", "index/record_index"),
    ("writer_hooks/files/target_files", "                noted.deletes(won.keys.take(gone), by_value=typed)\n", "", "index/record_index"),
    ("writer_hooks/files/target_files", "gone.filter(pc.invert(pc.is_in(gone, value_set=moved)))", "gone", "index/record_index"),
    ("timeline/metadata_table/index_logs", "kept = np.append(~same, True)", "kept = np.ones(len(group), np.bool_)", "index/record_index"),
    ("timeline/metadata_table/index_keys", "for part in (self.replaced, self.files)", "for part in (self.files, self.replaced)", "index/record_index"),
    ("writer_hooks/index/replaced_keys_step", "compares(work.merge) and may_delete_by_value(storage, work.merge.marker, slice_)", "False", "index/record_index"),
    ("writer_hooks/index/replaced_keys_step", "len(answers) != sum(map(len, replacing.values()))", "False", "index/record_index"),
    # How it is made.
    ("timeline/metadata_table/create", "_FIRST_COMPLETION if config.layout.has_completion_times else None", "f\"{id(object()):017}\" if config.layout.has_completion_times else None", "commit"),
    ("writer_hooks/new_table/create", "            config = make_metadata_table(storage, config)\n", "            make_metadata_table(storage, config)\n", "commit"),
    # What it holds and the table does not know.
    ("timeline/metadata_table/services/serve", "if i.requested_time not in known]", "]", "unknown"),
    ("timeline/metadata_table/services/serve", "data.pending(\"restore\") or ", "", "unknown"),
    ("timeline/metadata_table/services/serve", "if beats[i] is None or not is_live(beats[i], now_ms())", "", "unknown"),
    ("timeline/metadata_table/services/serve", "    refuse_half_upgraded(table)\n", "", "unknown"),
    ("timeline/metadata_table/services/serve", "active | {i.requested_time for i in table.with_archive(data).archived}", "active", "unknown"),
    ("timeline/metadata_table/services/serve", "return len(time) == _DIGITS and not time.startswith(MADE_UP)", "return True", "unknown"),
    ("timeline/metadata_table/commit", "    if not section.is_held():\n        _withdraw_late(table, metadata, instant)\n", "", "unknown"),
    ("timeline/metadata_table/commit", "        except (MalformedError, MissingFileError):\n            continue\n", "        except LookupError:\n            continue\n", "unknown"),
    ("timeline/metadata_table/services/serve", "if not may_be_written(metadata.storage, metadata.instant_path(i), i.requested_time, now_ms())", "if True", "unknown"),
    ("timeline/metadata_table/services/serve", " if i.state is State.REQUESTED)", ")", "unknown"),
    ("timeline/metadata_table/location", "raise error.below(metadata.storage.base_path).advising(BUILD_ANEW) from error", "raise", "unknown"),
    ("timeline/metadata_table/commit", "    if all(i.requested_time != instant for i in table.load_timeline().instants):\n", "    if True:\n", "unknown attempt/lost_lock"),
    # Its compaction.
    ("timeline/metadata_table/services/due", "    if pending and pending[0] <= last:\n", "    if False:\n", "serve"),
    ("timeline/metadata_table/services/due", "    if (blocked := blocked_by(metadata)) is not None:\n", "    if (blocked := \"\"):\n", "serve"),
    ("timeline/metadata_table/services/due", "    if building:\n", "    if False:\n", "serve"),
    ("timeline/metadata_table/services/due", "    if not told:\n", "    if True:\n", "serve"),
    ("timeline/metadata_table/services/compact", "        _remove_leftovers(metadata, instant, plan, section)\n", "", "serve"),
    ("timeline/metadata_table/services/compact", "        if not metadata.storage.put_if_absent(path, content):\n            raise _other(metadata, path, instant)\n    return", "        metadata.storage.put_if_absent(path, content)\n    return", "serve"),
    ("timeline/metadata_table/services/compact", " and name.instant == instant and name.token != _TOKEN", " and name.instant == instant", "attempt/lost_lock"),
    ("timeline/metadata_table/commit", "if by_name and not index_logs and _is_recorded(metadata, timeline, instant, records, schema_text):", "if False:", "attempt/lost_lock"),
    ("timeline/metadata_table/commit", "revokes(metadata, f", "False and revokes(metadata, f", "commit"),
    ("timeline/metadata_table/services/compact", "    if metadata.layout.slicing is Slicing.BY_BASE_INSTANT:\n", "    if False:\n", "attempt/lost_lock"),
    ("timeline/metadata_table/commit", "    _forget_rollbacks(metadata, timeline, instant, section)\n", "    section = Section(purpose='', lock='', is_held=lambda: True)\n", "attempt/lost_lock"),
    # Its cleans.
    ("timeline/metadata_table/services/clean", "policy=Policy.VERSIONS, retain=2", "policy=Policy.VERSIONS, retain=1", "services/clean"),
    ("timeline/metadata_table/services/clean", "    if len(after) < _INSTANTS_AFTER_COMPACTION:\n", "    if False:\n", "services/clean"),
    ("timeline/metadata_table/services/clean", "    if any(i.action == _ACTION for i in after):\n", "    if False:\n", "services/clean"),
    ("timeline/metadata_table/services/clean", "i.requested_time[:_DIGITS] > last", "i.requested_time > last", "services/clean"),
    ("timeline/metadata_table/services/clean", "    _refuse_needed(metadata, load_metadata_view(metadata, table.config.built_metadata_partitions), instant, plan)\n", "", "services/clean"),
    ("timeline/metadata_table/services/clean", "if g.key not in view.facts.replaced", "if True", "services/clean"),
    ("timeline/metadata_table/services/serve", "timeline.pending_compactions or timeline.pending(\"clean\")", "timeline.pending_compactions", "services/clean"),
    ("timeline/metadata_table/services/due", "for i in metadata.instants if i.is_write", "for i in metadata.instants", "services/clean"),
    # Its archiving.
    ("timeline/metadata_table/services/archive", "    return border.why if first >= border.time else None\n", "    return None\n", "services/archive"),
    ("timeline/metadata_table/services/archive", "metadata_compacted=max(compactions, default=None)", "metadata_compacted=\"9\"", "services/archive"),
    ("timeline/metadata_table/services/archive", "    return active, Border(time=min(logs), why=why)\n", "    return (active,)\n", "services/archive"),
    ("timeline/metadata_table/services/archive", "        borders=further,\n", "", "services/archive"),
    ("timeline/metadata_table/services/archive", "return first is not None and any(time > first for time in filled)", "return False", "services/archive"),
    ("timeline/metadata_table/services/archive", "if not dry_run and (both := archive.held_already(timeline.instants)):", "if both := ():", "services/archive"),
    ("timeline/metadata_table/services/serve", "or waits is None or archive is None", "or waits is None", "services/archive"),
    ("timeline/metadata_table/metadata_view", "if time > filled.get(partition, \"\")", "if True", "serve"),
    ("timeline/metadata_table/metadata_view", "instant.requested_time.startswith(MADE_UP)", "True", "serve"),
    ("timeline/metadata_table/column_stats/column_range", "        high = math.nan\n", "        pass\n", "column_stats"),
)  # fmt: skip
