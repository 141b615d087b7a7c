# ruff: noqa: E501
"""Stitchings: which files, and what must hold before they count."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

_UNREADABLE = "compactor_daemon/stitching/unreadable"
_CHOICE = "timeline/stitching/choice"
_COMPLETE = "compactor_daemon/stitching/complete"
_PENDING = "compactor_daemon/stitching/pending"
_PLANNED = "compactor_daemon/stitching/planned"
_STITCH = "compactor_daemon/stitching/stitch"
_MADE, _ROWS_IN = "compactor_daemon/stitching/made", "compactor_daemon/stitching/rows_in"
_AUDIT, _AUDITED = "timeline/audit/stitchings", "audit"
_LATE_COMMIT, _LATE = "compactor_daemon/stitching/late", "late"
_PURE, _TESTS = "stitching/choice", "stitching/stitch"

MUTANTS: tuple[Mutant, ...] = (
    (_CHOICE, "    _refuse_buckets(living, where)\n", "", _PURE),
    (_CHOICE, "if g.slices and not is_replaced(g, view.facts)]", "if g.slices]", _TESTS),
    (_CHOICE, "\"it has log files\" if group.slices[-1].logs or group.slices[-1].base is None else None", "None", _PURE),
    (_CHOICE, "        elif row:\n            yield row\n            row = []\n", "", _PURE),
    (_CHOICE, "sorted(groups, key=_came)", "groups", _PURE),
    (_CHOICE, "        return \"in a pending compaction\"\n", "        return None\n", _TESTS),
    (_CHOICE, "    if (why := busy.get(group.key)) is not None:\n        return why\n", "", _PURE),
    (_CHOICE, "if len(window) >= least and size >= options.target_size:", "if len(window) >= least:", _PURE),
    (_PLANNED, " or is_replaced(found, view.facts)", "", _TESTS),
    (_PLANNED, "str(last.base.name) == name and not last.logs else None", "str(last.base.name) == name else None", _TESTS),
    (_COMPLETE, "        _refuse_waiting(table, timeline, pending)\n", "", _TESTS),
    (_COMPLETE, "        refuse_passed(table, timeline, pending)\n", "", "passed_clustering"),
    ("compactor_daemon/stitching/passed", "retained_since(table, timeline) > pending.time", "False", "passed_clustering"),
    (_STITCH, " or passed or ", " or ", "passed_clustering"),
    ("writer_hooks/commit/transaction", "(retained := retained_since(self.table, now)) > self.instant", "(retained := \"\")", "passed_clustering"),
    (_COMPLETE, "    withdraw_late(table, timeline, lock)\n", "", _LATE),
    (_LATE_COMMIT, "and all(find(path) is None for path in made)", "and True", _LATE),
    (_LATE_COMMIT, "and all(find(one.path(name)) is not None for one in groups for name in one.inputs)", "and True", _LATE),
    (_LATE_COMMIT, "            if since := _written_since(table, now, done, names):\n", "            if since := \"\":\n", _LATE),
    (_COMPLETE, "        if inputs_now(table, pending, timeline) != tuple(one.inputs for one in made):", "        if False:", _TESTS),
    (_COMPLETE, "if write.requested_time in replacing or may_not_know:", "if may_not_know:", _TESTS),
    ("compactor_daemon/stitching/stitch", "    if choice.windows:\n        schema", "    if False:\n        schema", "read/evolved_on_read"),
    (_COMPLETE, "_commit(placed, table.schema_to_stitch(timeline).commit_text)", "_commit(placed, table.schema_to_stitch(table.load_timeline().completed_by(pending.time)).commit_text)", _TESTS),
    (_COMPLETE, "        if found.completed:\n", "        if False:\n", _TESTS),
    (_COMPLETE, "    storage.delete_folder(staged_folder(pending.time))\n    section.check()\n", "        section.check()\n", _TESTS),
    (_COMPLETE, "    storage.delete_all([join(partition, name) for partition, name in traces.doomed])\n", "", _TESTS),
    (_COMPLETE, "    bury(storage, pending.time)", "", _TESTS),
    (_COMPLETE, "    if storage.find(one.final) is None:\n", "    if True:\n", _TESTS),
    (_COMPLETE, "        if not is_at_work(table, pending) and not is_of_hudi(table, pending):", "        if not is_of_hudi(table, pending):", _TESTS),
    (_COMPLETE, "        _look_back(table, pending, done)\n", "", _TESTS),
    (_COMPLETE, "    refuse_changed_inputs(table, timeline, done, placed, lock)\n", "", _LATE),
    (_LATE_COMMIT, "        if not inputs.isdisjoint(_groups_of(table, instant)):\n", "        if False:\n", _LATE),
    (_LATE_COMMIT, "if not now.is_committed(time)), None)", "if False), None)", _LATE),
    (_LATE_COMMIT, "        if not made.keys().isdisjoint(_groups_of(table, instant)):\n            yield f\"{instant.action} {instant.requested_time} wrote to its files\"\n", "        yield from ()\n", _LATE),
    (_UNREADABLE, "< EXPIRY_S * 1000:", "< 0:", "late"),
    (_UNREADABLE, "if instant.state > State.REQUESTED else", "if False else", "late"),
    (_UNREADABLE, "if is_live(read_heartbeat(storage, time), now_ms) else", "if False else", "late"),
    (_UNREADABLE, "more files of it\" if doomed else", "more files of it\" if False else", "late"),
    (_UNREADABLE, "    bury(storage, time)\n", "", "late"),
    (_LATE_COMMIT, "        if not is_pending_service(table, write):\n", "        if False:\n", _LATE),
    (_AUDIT, "        if (other := now.replaced_by.get(key)) is not None:\n", "        if (other := None) is not None:\n", _AUDITED),
    (_AUDIT, "            yield f\"{log.path} belongs to a stitched file: its rows are in no base file\"\n", "            yield from ()\n", _AUDITED),
    (_AUDIT, "    out, schema = read_written(now.table, path, recorded, size, read_base)\n", "    _, out, schema = read_base(now.table, path, recorded)\n", _AUDITED),
    (_AUDIT, "    if any(now.size(recorded, name) is None for name in recorded.inputs):\n", "    if True:\n", _AUDITED),
    ("timeline/view/fact_loader", " or metadata.operation_type == CLUSTER", "", _TESTS),
    (_PENDING, "    if _PROCESS not in extra:", "    if False:", _TESTS),
    (_STITCH, "            if is_at_work(now, pending) or is_of_hudi(now, pending):\n                continue\n", "", _TESTS),
    (_STITCH, "                take_back(self.table, pending, self.lock, str(error))\n", "                pass\n", _TESTS),
    (_ROWS_IN, "for one in self.inputs if one.base is not None]", "for one in self.inputs[1:] if one.base is not None]", _TESTS),
    ("writer_hooks/commit/conflict", "        return None  # it moves rows, and adds no key\n", "        pass\n", _TESTS),
)  # fmt: skip
