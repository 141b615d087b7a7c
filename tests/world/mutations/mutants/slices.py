# ruff: noqa: E501
"""Executors of Hudi beside an attempt, and the work on one file slice: each safety rule is broken once."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # Executors of Hudi at our instant.
    ("compactor_daemon/decisions/hudi_executors", "        if self._clock() >= self._next:", "        if True:", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "            self._next = self._clock() + self._every_s\n", "            self._next = self._clock() + 1e9\n", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "now_ms - self.heartbeat_ms < options.heartbeat_expiry_s * 1000", "False", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "now_ms - self.heartbeat_ms < options.heartbeat_expiry_s * 1000", "True", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "if self.inflight_ms is None or self.heartbeat_ms is not None:", "if self.inflight_ms is None:", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "if self.inflight_ms is None or self.heartbeat_ms is not None:", "if True:", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "now_ms - (self.youngest_ms or self.inflight_ms)", "now_ms - self.inflight_ms", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "        times += [e.modified_ms for _, e in storage.list_below(marker_folder(instant))]\n", "", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", 'else (f"_{instant}.parquet",)', 'else ("nothing",)', "foreign"),
    ("compactor_daemon/decisions/hudi_executors", 'else (f"_{instant}.parquet",)', 'else (f"_{instant}.parquet", f"_{instant}.log.")', "foreign"),
    ("compactor_daemon/decisions/hudi_executors", 'else (f"_{instant}.parquet",)', 'else (".parquet",)', "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "heartbeat_ms=beat.beat_ms if beat is not None and not beat.ours else None", "heartbeat_ms=beat.beat_ms if beat is not None else None", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "        if now_ms == self._inflight_ms:\n", "        if now_ms is None or self._inflight_ms is not None:\n", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "        if now_ms == self._inflight_ms:\n", "        if now_ms is None or now_ms == self._inflight_ms:\n", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", '        declare_dead(self._table.storage, self._instant, "a Hudi compactor touched the instant")\n', "", "foreign"),
    ("compactor_daemon/decisions/hudi_executors", "    if is_live(trace, table, options):\n", "    if False:\n", "foreign"),
    # One file slice: what is adopted, what is recorded.
    ("compactor_daemon/execution/slice_task", "(f.path, f.size) for f in slice_.files]", "(f.path, 0) for f in slice_.files]", "slice_task"),
    ("compactor_daemon/execution/slice_task", '            "inputs": sizes,', '            "inputs": sizes[-1:],', "slice_task"),
    ("compactor_daemon/execution/slice_task", '            "schema": self.round.schema_text,\n', "", "slice_task"),
    ("compactor_daemon/execution/slice_task", "                rules.merge.mode.value,\n", "", "slice_task"),
    ("compactor_daemon/execution/slice_task", "                [str(t) for t in rules.merge.ordering_types],\n", "", "slice_task"),
    ("compactor_daemon/execution/slice_task", "                rules.merge.every_duplicate,\n", "", "slice_task"),
    ("compactor_daemon/execution/slice_task", "[*rules.keys.fields, *rules.ordering_fields]", "[*rules.keys.fields]", "slice_task"),
    ("compactor_daemon/execution/slice_task", "[*rules.keys.fields, *rules.ordering_fields]", "[*rules.ordering_fields]", "slice_task"),
    ("compactor_daemon/execution/slice_task", '            parts["fold"] = self.log.fold\n', "            pass\n", "slice_task"),
    ("compactor_daemon/execution/slice_task", 'f"{self.position}-{self.attempt}-{COMPACTOR}"', 'f"{self.position}-1-{COMPACTOR}"', "slice_task"),
    ("compactor_daemon/execution/slice_task", "{task.position}-{uuid.uuid4().hex}{", "{task.position}-staged{", "slice_task"),
    ("compactor_daemon/execution/slice_task", "if inputs.base is None and not counts.entries:", "if inputs.base is None:", "slice_task"),
    ("compactor_daemon/execution/slice_task", "if inputs.base is None and not counts.entries:", "if False:", "slice_task"),
    ("compactor_daemon/execution/slice_task", "    ledger.check(\n", "    dict(\n", "slice_task"),
    ("compactor_daemon/execution/slice_task", "    hash_out = identity_sum(tables())\n", "    hash_out = identity_sum(tables()) * 0\n", "slice_task"),
    ("compactor_daemon/execution/slice_task", "        uncommitted=counts.uncommitted,\n", "        uncommitted=(),\n", "attempt"),
    ("compactor_daemon/execution/slice_task", ' and storage.find(path.rpartition("/")[0]) is None:\n', " and False:\n", "slice_task"),
    ("compactor_daemon/execution/slice_task", "    return winner\n", "    return done\n", "slice_task"),
    ("compactor_daemon/execution/slice_task", "        storage.delete(done.staged)\n    return winner", "        pass\n    return winner", "slice_task"),
    ("compactor_daemon/execution/slice_task", "if winner.staged != done.staged and done.staged is not None:", "if done.staged is not None:", "slice_task"),
    # A lost file of a decided compaction, merged again.
    ("compactor_daemon/attempt/publish", "pending=go.instant)", "pending=None)", "retire"),
    ("compactor_daemon/attempt/publish", '    storage.delete(task.record_path)  # it names the lost file\n', "", "retire"),
    ("compactor_daemon/attempt/publish", 'metadata["schema"], view.timeline', "table.newest_schema(view.timeline).commit_text, view.timeline", "retire"),
    ("compactor_daemon/attempt/publish", "same = (done.final, done.size, done.ledger) == (placement.final, placement.size, ledgers[task.slice.key])", "same = (done.final, done.size) == (placement.final, placement.size)", "retire"),
    ("compactor_daemon/attempt/publish", "same = (done.final, done.size, done.ledger) == (placement.final, placement.size, ledgers[task.slice.key])", "same = (done.final, done.ledger) == (placement.final, ledgers[task.slice.key])", "retire"),
    ("compactor_daemon/attempt/publish", "    if done.staged is None or not same:\n", "    if done.staged is None:\n", "retire"),
    ("compactor_daemon/attempt/publish", "            storage.delete(done.staged)\n", "            pass\n", "retire"),
    ("compactor_daemon/attempt/publish", "placement.output or OutputOptions()", "OutputOptions()", "retire"),
    ("compactor_daemon/execution/slice_task", "        output=task.round.output,\n    )\n    return _record", "    )\n    return _record", "retire"),
    ("compactor_daemon/attempt/compact_instant", "size=d.size, output=d.output)", "size=d.size)", "retire"),
    ("compactor_daemon/attempt/publish", "plan.only(position)", "plan.only(0)", "retire"),
    ("compactor_daemon/attempt/publish", "attempt=attempt, position=position)", "attempt=1, position=position)", "retire"),
    ("compactor_daemon/attempt/publish", "attempt=attempt, position=position)", "attempt=go.attempt, position=position)", "retire"),
    ("compactor_daemon/attempt/publish", "        task = replace(task, part=replace(task.part, log=replace(task.log, version=name.version)))\n", "        pass\n", "retire attempt/log_compaction"),
)  # fmt: skip
