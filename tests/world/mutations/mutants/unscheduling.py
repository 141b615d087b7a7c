# ruff: noqa: E501
"""Taking a plan back."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    ("compactor_daemon/attempt/attempt", "if table.compaction_plan(instant).groups == plan.groups:", "if table.compaction_plan(instant).operations:", "narrowed"),
    ("compactor_daemon/removal/unschedule", ".items() if name != NOTES}", ".items()}", "narrowed"),
    ("compactor_daemon/removal/unschedule", "                if kept:\n", "                if False:\n", "narrowed"),
    ("compactor_daemon/removal/unschedule", "        storage.put_if_absent(path, data)\n", "", "unschedule"),
    ("compactor_daemon/removal/unschedule", "        ended |= _end_attempts(storage, instant, who)\n        refuse_inflight", "        refuse_inflight", "unschedule"),
    ("compactor_daemon/removal/untouched", "by_base and pending and not plan.merges_logs", "by_base and False", "unschedule"),
    ("compactor_daemon/removal/untouched", "left = _refuse_files(table, instant, plan, is_dead=is_dead)", "left = ()", "unschedule stuck"),
    ("compactor_daemon/removal/untouched", "    refuse_rollback(table, instant)\n", "", "unschedule"),
    ("compactor_daemon/removal/untouched", "if is_live(trace, table, options):", "if False:", "unschedule stuck"),
    ("compactor_daemon/removal/untouched", "foreign_trace(table, instant, table.views.planned_partitions([plan]))", "foreign_trace(table, instant, ())", "stuck"),
    ("compactor_daemon/removal/untouched", "if is_dead and plan.merges_logs and by_base:", "if False:", "stuck"),
    ("compactor_daemon/removal/unschedule", "        refuse_inflight(table, instant, inflight, options)\n", "", "stuck"),
    ("compactor_daemon/removal/unschedule", "for left in (*dead.files, dead.inflight):", "for left in (dead.inflight,):", "stuck"),
    ("compactor_daemon/removal/unschedule", "for left in (*dead.files, dead.inflight):", "for left in dead.files:", "stuck"),
    ("compactor_daemon/removal/unschedule", "            storage.put_if_absent(dead.inflight, b\"\")\n", "            pass\n", "stuck"),
    ("compactor_daemon/attempt/inputs", "if group is None or not _is_written_under(group, instant, view):", "if True:", "witness_of_plans"),
    # Plans that cannot be read, or share a file group.
    ("compactor_daemon/removal/unschedule", ", prevails=instant)", ")", "stuck"),
    ("compactor_daemon/removal/unschedule", "    if begun:\n", "    if False:\n", "stuck"),
    ("compactor_daemon/removal/unschedule", "if entry is None or now_ms - entry.modified_ms < options.heartbeat_expiry_s * 1000:", "if False:", "stuck"),
    ("compactor_daemon/removal/unschedule", "        _refuse_written(table, instant, path)\n", "        pass\n", "stuck"),
    ("compactor_daemon/removal/unschedule", "path)\n    refuse_touched(table, instant, plan, options)\n", "path)\n", "stuck"),
    ("compactor_daemon/removal/unschedule", "if requested.action == \"logcompaction\" or not table.storage", "if True or not table.storage", "stuck"),
    ("timeline/planning/planner", "found.kind is MergeKind.MINOR and self._in.no_minor is not None", "False", "stuck"),
    ("compactor_daemon/removal/unschedule", "    remove_staged(storage, instant)\n", "", "unschedule"),
    ("compactor_daemon/removal/unschedule", "if movable_keys(_view(table, instant), instant, deletes) == keys:", "if True:", "unschedule"),
    ("compactor_daemon/attempt/moved_keys", "base.name.instant > instant", "False", "unschedule"),
    ("compactor_daemon/attempt/moved_keys", "(s.base for s in group.slices if s.base is not None)", "(s.base for s in group.slices[-1:] if s.base is not None)", "unschedule"),
    ("compactor_daemon/attempt/moved_keys", "for group in view.groups:", "for group in (g for g in view.groups if g.key not in view.facts.replaced):", "unschedule"),
    ("compactor_daemon/attempt/moved_keys", "if len(gone) and keys.pending:", "if False:", "unschedule"),
    ("compactor_daemon/attempt/moved_keys", "pa.array(~lives)", "pa.array(lives | True)", "unschedule"),
)  # fmt: skip
