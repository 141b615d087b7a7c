# ruff: noqa: E501
"""Mutants of what stands at the edges: commands, settings of tables, plans on storage, keys, status, pages."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

_CONFIG, _PLAN, _ROLLBACK = (
    "timeline/format/table_config",
    "timeline/format/compaction_plan",
    "timeline/format/rollback_plan",
)
_BUCKET, _MERGE = "timeline/format/bucket", "timeline/format/merge_settings"
_SCHEMA, _KEYS, _SPEC = (
    "writer_hooks/schema/table_schema",
    "writer_hooks/keys/key_generator",
    "writer_hooks/new_table/spec",
)
_BESIDE, _LOOK = "compactor_daemon/status/coexistence", "compactor_daemon/status/snapshot"
_KEEPER = "compactor_daemon/zookeeper/embedded"

MUTANTS: tuple[Mutant, ...] = (
    # Settings of a table: the backup is the only good copy, and is not overwritten by a damaged file.
    (_CONFIG, "        storage.overwrite(BACKUP, current)", "        pass", "table_config"),
    (_CONFIG, "        TableConfig.parse(current, PROPERTIES)\n    except", "    except", "table_config"),
    (_CONFIG, "for path in (PROPERTIES, BACKUP) * _LOAD_ROUNDS:", "for path in (PROPERTIES,) * _LOAD_ROUNDS:", "table_config"),
    (_CONFIG, "if config.properties[_CHECKSUM] != expected:", "if False:", "table_config"),
    (_CONFIG, "and made != self.properties[_VERSION]", "and made is not None", "table_config"),
    (_CONFIG, 'if not layout.has_completion_times and self.properties.get(key) == "":', "if False:", "table_config"),
    # Plans.
    (_PLAN, "if version not in (1, PLAN_VERSION):", "if False:", "compaction_plan"),
    (_PLAN, "if not name or (version == PLAN_VERSION and name != path):", "if not name:", "compaction_plan"),
    (_PLAN, "    if not inside_table(path):", "    if False:", "compaction_plan"),
    (_PLAN, "PLAN_SCHEMA_0X if missing is None else PLAN_SCHEMA", "PLAN_SCHEMA", "compaction_plan"),
    (_PLAN, "read_mb, write_mb = read_bytes // _MB, write_bytes // _MB", "read_mb, write_mb = -(-read_bytes // _MB), write_bytes // _MB", "compaction_plan planner"),
    (_ROLLBACK, "max(size, known.get(name, 0))", "size", "recovery/rollback"),
    (_ROLLBACK, "        if not inside_table(partition):", "        if False:", "recovery/rollback"),
    (_ROLLBACK, 'if not request["fileId"] or not request["latestBaseInstant"]:', "if False:", "recovery/rollback"),
    (_ROLLBACK, "{*self.doomed, *other.doomed}", "self.doomed", "recovery/rollback"),
    # Buckets: rows go where Hudi looks for them.
    (_BUCKET, "KeySplit.LABELLED if layout.has_completion_times else KeySplit.EACH_COMMA", "KeySplit.LABELLED", "file_name placed_keys"),
    (_BUCKET, '",+$"', '"^$"', "file_name"),
    (_BUCKET, "whole = ~has_values if split is KeySplit.LABELLED else np.zeros(len(rows), bool)", "whole = np.zeros(len(rows), bool)", "file_name"),
    (_BUCKET, '["__null__", "__empty__"]', '["__null__"]', "file_name"),
    # Rules of merging.
    (_MERGE, "if strategy != EVENT_TIME_STRATEGY:", "if False:", "table_config"),
    (_MERGE, "if payload == _POSTGRES and ordering != _POSTGRES_ORDERING:", "if False:", "table_config"),
    (_MERGE, "if by_strategy and by_payload and by_strategy != by_payload:", "if False:", "table_config"),
    (_MERGE, "if bool(field) != bool(value):", "if False:", "table_config"),
    (_MERGE, "MergeMode.EVENT_TIME if has_ordering else MergeMode.COMMIT_TIME", "MergeMode.COMMIT_TIME", "table_config"),
    # Schemas, keys, new tables.
    (_SCHEMA, "missing = [above + f.name for f in table if not f.nullable and f.name not in given]", "missing: list[str] = []", "table_schema"),
    (_SCHEMA, "required = [above + f.name for f in added if not f.nullable]", "required: list[str] = []", "table_schema"),
    (_SCHEMA, "return (table.tz is None) == (incoming.tz is None)", "return True", "table_schema"),
    (_SCHEMA, "incoming.scale <= table.scale and whole_incoming <= whole", "incoming.scale <= table.scale", "table_schema"),
    (_KEYS, "without = pc.and_(without, other)", "without = pc.or_(without, other)", "key_generator"),
    (_KEYS, 'for character in ("%", *(c for c in _ESCAPED if c != "%")):', "for character in _ESCAPED:", "key_generator"),
    (_KEYS, "    if pc.any(wrong).as_py():", "    if False:", "key_generator"),
    ("writer_hooks/keys/key_encoding", "return config.layout.has_completion_times", "return True", "key_generator placed_keys"),
    ("writer_hooks/keys/key_encoding", "if not len(keys) or prefixed is plain or None in (prefixed, plain):", "if not len(keys):", "key_generator"),
    ("writer_hooks/keys/partition_times", "            if given[name] != value:", "            if False:", "partition_times"),
    (_SPEC, "if self.mode is MergeMode.EVENT_TIME and not self.ordering_fields:", "if False:", "new_table/create"),
    (_SPEC, 'if self.meta_columns is False and not self.key_fields:', "if False:", "new_table/create keys/virtual_keys"),
    (_SPEC, "    if spec.merge_mode is not None:", "    if False:", "new_table/create"),
    (_SPEC, '"hoodie.table.format": "native",', "", "new_table/as_hudi_makes_it"),
    (_SPEC, '"hoodie.database.name": self.database,', "", "new_table/as_hudi_makes_it"),
    (_SPEC, "(payload if self.version == 8 else {})", "payload", "new_table/as_hudi_makes_it"),
    (_SPEC, "    if spec.meta_columns is not None:", "    if False:", "new_table/create keys/virtual_keys"),
    # Steps of a write: the pieces of one target meet in one task, in their order.
    ("writer_hooks/engine/engine", "for piece in sorted(self._pieces, key=lambda p: p.order):", "for piece in self._pieces:", "writer placed_keys"),
    ("writer_hooks/engine/engine", 'zlib.crc32(f"{piece.partition}\\0{piece.target}".encode())', 'zlib.crc32(f"{piece.partition}\\0{piece.order}".encode())', "writer"),
    ("writer_hooks/engine/engine", "total.get((partition, target), 0) + count", "count", "arrow_sources"),
    # What is found of other programs.
    (_BESIDE, "beside = [p for p in pending if p != first]", "beside: list[str] = []", "coexistence"),
    (_BESIDE, "for i in silent if i in still),", "for i in silent),", "coexistence"),
    (_BESIDE, "refused = seen.zone.zone is Zone.BEHIND or seen.version == 6", "refused = seen.zone.zone is Zone.BEHIND", "coexistence"),
    (_BESIDE, "whose[ours[-1] + 1 :]", "whose", "coexistence"),
    (_LOOK, "        if entry is None:\n", "        if False:\n", "status"),
    (_LOOK, "            if not metadata.compacted:", "            if False:", "status"),
    ("compactor_daemon/status/outlook", "        and not is_replaced(group, view.facts)\n", "", "coexistence"),
    # Pages and metrics.
    ("timeline/dashboard/health", "if slo_s is not None and age > slo_s:", "if False:", "pages"),
    ("timeline/dashboard/health", 'if row["state"] == "parked":', "if False:", "pages"),
    ("timeline/dashboard/pages", "end or edge), ((end or max(today, begun)) - begun)", "end or edge), ((end or edge) - begun)", "table_states"),
    ("timeline/dashboard/metrics", "for metric in _families(tables, list(rows)) if metric.name not in named]", "for metric in _families(tables, list(rows))]", "process"),
    ("timeline/dashboard/metrics", '.timestamp() - row["utc_offset_s"]', ".timestamp()", "process"),
    # Commands.
    ("timeline/cli/check", "    if not all(f.good for f in found):", "    if False:", "audit project/commands"),
    ("timeline/cli/report", "not found.differences and not wrong and not flaws", "not found.differences and not flaws", "clock"),
    ("timeline/cli/report", "not found.differences and not wrong and not flaws", "not found.differences and not wrong", "witness_services"),
    ("timeline/cli/check", "    if not dry_run:\n        set_times", "    if True:\n        set_times", "clock"),
    ("timeline/cli/read", "limit if options.limit is not None else limit + 1", "limit", "main project/commands"),
    ("timeline/cli/read", "    if sys.stdout.isatty():", "    if False:", "main"),
    ("compactor_daemon/cli/compact", "    if dry_run and drops:", "    if False:", "config"),
    ("compactor_daemon/cli/lake", "        if len(given) != 1:", "        if not given:", "config"),
    ("compactor_daemon/cli/lake", "        if tables and (self.include or self.exclude):", "        if False:", "config"),
    ("compactor_daemon/cli/undo", "    elif lock is not None or sole_writer:\n        raise", "    elif False:\n        raise", "config"),
    # The embedded ZooKeeper: one server a folder, at the port that its daemons use.
    (_KEEPER, "time.monotonic() < self._not_before or (lock", "(lock", "embedded_zookeeper"),
    (_KEEPER, "        if is_free(kept):\n            return kept", "        return kept", "embedded_zookeeper"),
    (_KEEPER, "if (kept := _kept_port(self._folder)) != self.port:", "if (kept := self.port) != self.port:", "embedded_zookeeper"),
    ("compactor_daemon/zookeeper/session", "return bool(self._state == self._states.CONNECTED)", "return bool(self._state != self._states.LOST)", "claims"),
)  # fmt: skip
