# ruff: noqa: E501
"""Executors of Hudi beside an attempt, and the work on one file slice: each safety rule is broken once."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # Executors of Hudi at our instant.
    ("compactor_daemon/foreign", "        if self._clock() >= self._next:", "        if True:", "foreign"),
    ("compactor_daemon/foreign", "            self._next = self._clock() + self._every_s\n", "            self._next = self._clock() + 1e9\n", "foreign"),
    ("compactor_daemon/foreign", "now_ms - self.heartbeat_ms < options.heartbeat_expiry_s * 1000", "False", "foreign"),
    ("compactor_daemon/foreign", "now_ms - self.heartbeat_ms < options.heartbeat_expiry_s * 1000", "True", "foreign"),
    ("compactor_daemon/foreign", "if self.inflight_ms is None or self.heartbeat_ms is not None:", "if self.inflight_ms is None:", "foreign"),
    ("compactor_daemon/foreign", "if self.inflight_ms is None or self.heartbeat_ms is not None:", "if True:", "foreign"),
    ("compactor_daemon/foreign", "now_ms - (self.youngest_ms or self.inflight_ms)", "now_ms - self.inflight_ms", "foreign"),
    ("compactor_daemon/foreign", "        times += [e.modified_ms for _, e in files_below(storage, marker_folder(instant))]\n", "", "foreign"),
    ("compactor_daemon/foreign", 'else (f"_{instant}.parquet",)', 'else ("nothing",)', "foreign"),
    ("compactor_daemon/foreign", 'else (f"_{instant}.parquet",)', 'else (f"_{instant}.parquet", f"_{instant}.log.")', "foreign"),
    ("compactor_daemon/foreign", 'else (f"_{instant}.parquet",)', 'else (".parquet",)', "foreign"),
    ("compactor_daemon/foreign", "heartbeat_ms=beat.beat_ms if beat is not None and not beat.ours else None", "heartbeat_ms=beat.beat_ms if beat is not None else None", "foreign"),
    ("compactor_daemon/foreign", "        if now_ms == self._inflight_ms:\n", "        if now_ms is None or self._inflight_ms is not None:\n", "foreign"),
    ("compactor_daemon/foreign", "        if now_ms == self._inflight_ms:\n", "        if now_ms is None or now_ms == self._inflight_ms:\n", "foreign"),
    ("compactor_daemon/foreign", '        declare_dead(self._table.storage, self._instant, "a Hudi compactor touched the instant")\n', "", "foreign"),
    ("compactor_daemon/foreign", "    if trace.is_live(now_ms, options):\n", "    if False:\n", "foreign"),
    # One file slice: what is adopted, what is recorded.
    ("compactor_daemon/slice_task", "(f.path, f.size) for f in slice_.logs", "(f.path, 0) for f in slice_.logs", "slice_task"),
    ("compactor_daemon/slice_task", '            "inputs": sizes,', '            "inputs": sizes[-1:],', "slice_task"),
    ("compactor_daemon/slice_task", '            "schema": self.round.schema_text,\n', "", "slice_task"),
    ("compactor_daemon/slice_task", "                rules.merge.mode.value,\n", "", "slice_task"),
    ("compactor_daemon/slice_task", "                [str(t) for t in rules.merge.ordering_types],\n", "", "slice_task"),
    ("compactor_daemon/slice_task", "                rules.merge.every_duplicate,\n", "", "slice_task"),
    ("compactor_daemon/slice_task", "[*rules.keys.fields, *rules.ordering_fields]", "[*rules.keys.fields]", "slice_task"),
    ("compactor_daemon/slice_task", "[*rules.keys.fields, *rules.ordering_fields]", "[*rules.ordering_fields]", "slice_task"),
    ("compactor_daemon/slice_task", '            parts["fold"] = self.log.fold\n', "            pass\n", "slice_task"),
    ("compactor_daemon/slice_task", 'f"{self.position}-{self.attempt}-{TOKEN_STAGE}"', 'f"{self.position}-1-{TOKEN_STAGE}"', "slice_task"),
    ("compactor_daemon/slice_task", "{task.position}-{uuid.uuid4().hex}{", "{task.position}-staged{", "slice_task"),
    ("compactor_daemon/slice_task", "if inputs.base is None and not counts.entries:", "if inputs.base is None:", "slice_task"),
    ("compactor_daemon/slice_task", "if inputs.base is None and not counts.entries:", "if False:", "slice_task"),
    ("compactor_daemon/slice_task", "    ledger.check(\n", "    dict(\n", "slice_task"),
    ("compactor_daemon/slice_task", "return rows, identity_sum(table for table, _ in base_tables(storage, path, schema, rules.batch_rows))", "return rows, 0", "slice_task"),
    ("compactor_daemon/slice_task", "        uncommitted=counts.uncommitted,\n", "        uncommitted=(),\n", "attempt"),
    ("compactor_daemon/slice_task", '    if storage.find(path.rpartition("/")[0]) is None:\n', "    if False:\n", "slice_task"),
    ("compactor_daemon/slice_task", "    return winner\n", "    return done\n", "slice_task"),
    ("compactor_daemon/slice_task", "        storage.delete(done.staged)\n    return winner", "        pass\n    return winner", "slice_task"),
    ("compactor_daemon/slice_task", "if winner.staged != done.staged and done.staged is not None:", "if done.staged is not None:", "slice_task"),
    # A lost file of a decided compaction, merged again.
    ("compactor_daemon/restore", "pending=go.instant)", "pending=None)", "restore"),
    ("compactor_daemon/restore", '    storage.delete(f"{attempt_folder(go.instant, attempt)}/{position}{OK}")  # it names the lost file\n', "", "restore"),
    ("compactor_daemon/restore", 'schema = table.schema(said["schema"])', "schema = table.schema(table.schema_text(view.timeline))", "restore"),
    ("compactor_daemon/restore", "same = (done.final, done.size, done.ledger) == (placement.final, placement.size, books[one.slice.key].ledger)", "same = (done.final, done.size) == (placement.final, placement.size)", "restore"),
    ("compactor_daemon/restore", "same = (done.final, done.size, done.ledger) == (placement.final, placement.size, books[one.slice.key].ledger)", "same = (done.final, done.ledger) == (placement.final, books[one.slice.key].ledger)", "restore"),
    ("compactor_daemon/restore", "    if done.staged is None or not same:\n", "    if done.staged is None:\n", "restore"),
    ("compactor_daemon/restore", "            storage.delete(done.staged)\n", "            pass\n", "restore"),
    ("compactor_daemon/restore", "placement.output or OutputOptions()", "OutputOptions()", "restore"),
    ("compactor_daemon/slice_task", "        output=task.round.output,\n    )\n    return _record", "    )\n    return _record", "restore"),
    ("compactor_daemon/decision", "size=d.size, output=d.output)", "size=d.size)", "restore"),
    ("compactor_daemon/restore", "operation = plan.operations[position]", "operation = plan.operations[0]", "restore"),
    ("compactor_daemon/restore", "instant=go.instant, attempt=attempt)", "instant=go.instant, attempt=1)", "restore"),
    ("compactor_daemon/restore", "instant=go.instant, attempt=attempt)", "instant=go.instant, attempt=go.attempt)", "restore"),
    ("compactor_daemon/restore", "        one = replace(one, log=replace(one.log, version=name.version))\n", "        pass\n", "restore log_compaction"),
)  # fmt: skip
