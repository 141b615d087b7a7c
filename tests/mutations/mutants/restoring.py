# ruff: noqa: E501
"""Restores and rollbacks of completed writes."""

from __future__ import annotations

from tests.mutations.mutants.mutant import Mutant

_RESTORE = "compactor_daemon/restoring/restore"
_ROLLBACK = "compactor_daemon/restoring/rollback"
_STITCHING = "compactor_daemon/stitching/rollback"
_REFUSALS = "compactor_daemon/restoring/refusals"
_UNDO = "timeline/recovery/undo"
_TESTS = "restoring/restore"
_HASHED = "restoring/consistent_hashing"
_TORN = "compactor_daemon/repair/torn_compaction"
_TORN_TESTS = "restoring/torn_compaction"
_PLAN_PUT = "compactor_daemon/restoring/plan_put"
_LOST = "restoring/lost_lock"

MUTANTS: tuple[Mutant, ...] = (
    (_RESTORE, "    refuse_left_to_hudi(table, \"restoring\")\n", "", _HASHED),
    (_ROLLBACK, "    refuse_left_to_hudi(table, \"taking back writes of\")\n", "", _HASHED),
    ("compactor_daemon/stitching/stitch", "    refuse_left_to_hudi(table, \"stitching\")\n", "", _HASHED),
    ("timeline/table/left_to_hudi", "if table.config.captures_changes:", "if False:", _HASHED),
    ("timeline/table/left_to_hudi", "return table.layout.has_completion_times and ", "return ", _HASHED),
    ("timeline/planning/schedule", "        if self.hashed:\n", "        if False:\n", _HASHED),
    ("compactor_daemon/attempt/inputs", "if plan.merges_logs and merges_no_logs(table):", "if False:", _HASHED),
    ("compactor_daemon/archiving/resizes", "path != stem and stem not in noted and", "path != stem and", "archiving/resizes"),
    ("compactor_daemon/archiving/resizes", "stem not in noted and timeline.find(time, \"replacecommit\") is not None:", "False:", "archiving/resizes"),
    ("compactor_daemon/archiving/resizes", "name is not None and not timeline.is_committed(name.instant):", "False:", "archiving/resizes"),
    ("compactor_daemon/archiving/resizes", "if t < time), default=\"\")", "if t > time), default=\"\")", "archiving/resizes"),
    (_STITCHING, "            refuse_cleaned(table, timeline, found)\n", "", "stitching/rollback"),
    (_STITCHING, "            refuse_built_upon(table, timeline, found)\n", "", "stitching/rollback"),
    (_STITCHING, "            files = _refuse_lost(table, found)\n", "", "stitching/rollback"),
    (_STITCHING, "        bury(table.storage, instant)\n        unpublish(table, found, section.check)\n", "        unpublish(table, found, section.check)\n        bury(table.storage, instant)\n", "stitching/rollback"),
    (_ROLLBACK, "        refuse_upgraded_logs(table, timeline, {time}, time)\n", "", "restoring/upgraded"),
    (_RESTORE, "        refuse_writers(seen, timeline)\n        refuse_upgraded_logs(seen, timeline, plan.times, plan.target)\n", "        refuse_writers(seen, timeline)\n", "restoring/upgraded"),
    ("compactor_daemon/restoring/upgraded_logs", "time in undone or", "False or", "restoring/upgraded"),
    (_ROLLBACK, "        refuse_cleaned(table, timeline, write)\n", "", _TESTS),
    (_ROLLBACK, "        refuse_last(table, timeline, write)\n", "", "archiving/all_rolled_back"),
    (_STITCHING, "            refuse_last(table, timeline, found)\n", "", "stitching/rollback"),
    (_ROLLBACK, "        refuse_left_out(table, timeline, {time}, time)\n", "", "restoring/left_out"),
    (_RESTORE, "    refuse_left_out(seen, timeline, {time for time, _ in undone}, target)\n", "", "restoring/left_out"),
    (_REFUSALS, "if by_name and time in undone}", "if False}", "restoring/left_out"),
    (_UNDO, "        if one.instant.completed:\n            check()\n            table.storage.delete(one.path)\n", "        pass\n", _TESTS),
    (_UNDO, "    storage.delete_all([join(partition, name) for partition, name in traces.doomed])\n", "", _TESTS),
    (_UNDO, "        if (made := revoke(table, slice_, time)) is not None:", "        if (made := None) is not None:", _TESTS),
    (_UNDO, "                if goes and time not in times and timeline.is_committed(time):", "                if False:", _TESTS),
    (_UNDO, "                if not goes and time in times:", "                if False:", _TESTS),
    (_UNDO, "key=lambda f: -f.instant.state", "key=lambda f: f.instant.state", _TESTS),
    (_RESTORE, "i.is_write and i.requested_time > target]", "i.is_write and i.completed and i.requested_time > target]", _TESTS),
    (_RESTORE, "i.family != \"deltacommit\"), reverse=True)", "i.family != \"deltacommit\"))", _TESTS),
    (_RESTORE, "    refuse_held(table, timeline, target)\n", "", _TESTS),
    (_RESTORE, "    _refuse_archived(table, timeline, target)\n", "", _TESTS),
    (_RESTORE, "    refuse_work(table, timeline, dead | {time for time in timeline.completed_writes if time > target})\n", "", _TESTS),
    (_RESTORE, "    _refuse_cleaned(table, living, target)\n", "", _TESTS),
    (_RESTORE, " if parsed is None or parsed.instant <= target]", "]", _TESTS),
    (_RESTORE, "        if gone := [name for", "        if gone := [] and [name for", _TESTS),
    (_RESTORE, "            _refuse_other(seen, found, target)\n            refuse_overtaken(seen, timeline, found)\n            refuse_up", "            refuse_up", _TESTS),
    (_RESTORE, "        table = drop_within(table, section)\n", "", _TESTS),
    (_REFUSALS, "        if kept.instant > after:", "        if False:", _TESTS),
    (_REFUSALS, "        if pin.holds > moment:", "        if False:", _TESTS),
    (_REFUSALS, "if beat is not None and is_live(beat, now_ms):", "if False:", _TESTS),
    (_ROLLBACK, "for i in timeline.instants if i.family == \"commit\"", "for i in timeline.completed if i.family == \"commit\"", _TESTS),
    (_ROLLBACK, "        refuse_built_upon(table, timeline, write)\n    except", "    except", _TESTS),
    (_PLAN_PUT, "        section.check()\n", "        pass\n", _LOST),
    (_PLAN_PUT, "            table.storage.delete(table.instant_path(requested))\n", "            pass\n", _LOST),
    (_PLAN_PUT, "        if write.requested_time not in times:", "        if False:", _LOST),
    (_PLAN_PUT, "or not _is_requested(timeline, requested)", "", _TESTS),
    (_ROLLBACK, "    with first_beat(table.storage, rollback.instant):", "    if True:", _LOST),
    (_ROLLBACK, "    table.storage.delete(heartbeat_path(begun.instant))\n", "    pass\n", _LOST),
    ("compactor_daemon/decisions/standing", ", *seen.timeline.completed_writes}", "}", _LOST),
    ("compactor_daemon/cleaning/execute", "                _take_back(table, now, section)  # what", "                pass  # what", _LOST),
    ("writer_hooks/commit/transaction", "        self._check_ground(now)\n", "", _LOST),
    ("timeline/recovery/unbegun_rollback", "beat is not None and beat.owner_gone", "beat is not None", _LOST),
    (_ROLLBACK, "            bury(table.storage, write.completion_time)\n", "", _TESTS),
    (_STITCHING, "            bury(table.storage, found.completion_time)\n", "", "stitching/rollback"),
    (_REFUSALS, "        if may_be_service(table, instant):\n            continue\n", "", "stitching/stitch"),
    ("timeline/locks/heartbeat", "return is_young or is_live(", "return is_live(", "removal/unreadable_rollback"),
    ("timeline/locks/heartbeat", "return is_young or is_live(read_heartbeat(storage, instant), now_ms)", "return is_young", "removal/unreadable_rollback"),
    ("timeline/recovery/unreadable_rollback", " and r.inflight is None", "", "removal/unreadable_rollback"),
    (_ROLLBACK, "or is_service(table, found[0]):", "or False:", _TESTS),
    ("writer_hooks/commit/transaction", "            refuse_pending_restore(table, timeline)\n", "", _TESTS),
    ("timeline/planning/schedule", "        refuse_pending_restore(table, timeline)\n", "", _TESTS),
    ("writer_hooks/commit/transaction", "            refuse_half_rolled_back(table, timeline)\n", "", _TESTS),
    ("timeline/planning/schedule", "        refuse_half_rolled_back(table, timeline)\n", "", _TESTS),
    ("compactor_daemon/stitching/stitch", "    refuse_half_rolled_back(table, timeline)\n", "", _TESTS),
    ("compactor_daemon/stitching/complete", "        refuse_half_rolled_back(table, timeline)\n", "", "stitching/stitch"),
    (_RESTORE, "dead | {time for time in timeline.completed_writes if time > target}", "dead", _TESTS),
    ("compactor_daemon/cleaning/would_clean", "    refuse_half_rolled_back(table, view.timeline)", "    pass", _TESTS),
    ("timeline/savepoints/savepoint", "        refuse_half_rolled_back(table, timeline)\n", "", _TESTS),
    (_ROLLBACK, "        if begun is None or write.completed:\n", "        if begun is None:\n", _TESTS),
    (_RESTORE, "            completed_too=False,", "            completed_too=True,", _TESTS),
    ("compactor_daemon/archiving/archive", "    refuse_pending_restore(table, timeline)\n", "", _TESTS),
    (_RESTORE, "i.completed or i.requested_time <= target)", "True)", "restoring/torn_commit"),
    ("timeline/savepoints/savepoint", "        refuse_pending_restore(table, timeline)\n", "", _TESTS),
    (_ROLLBACK, "        with first_beat(table.storage, instant):\n            unpublish", "        if True:\n            unpublish", _TESTS),
    ("timeline/recovery/rollback", "        with first_beat(table.storage, rollback.instant):\n", "        if True:\n", _TESTS),
    ("compactor_daemon/cleaning/would_clean", "                retained_by(table.files, clean)", "                pass", "cleaning/dry_runs"),
    ("compactor_daemon/restoring/torn", "planned - metadata.written_groups - replaced.keys()", "frozenset()", "restoring/left_out"),
    ("compactor_daemon/restoring/torn", "if slice_.base is None and slice_.logs and", "if False and", "restoring/left_out"),
    ("timeline/recovery/dead_writers", "is_pending_service if completed_too else may_be_service", "is_pending_service", "restoring/torn_replacement"),
    (_TORN, "    if may_be_written(table.storage, torn.path,", "    if False and may_be_written(table.storage, torn.path,", _TORN_TESTS),
    (_TORN, "    if len(outputs) != 1:", "    if not outputs:", _TORN_TESTS),
    (_TORN, "    if lost := sorted(set(inputs) - sizes.keys()):", "    if lost := []:", _TORN_TESTS),
    (_TORN, "stream.ledger(rows, hash_out)", "stream.ledger(rows)", _TORN_TESTS),
    (_TORN, "            table.storage.set_modified(torn.path, torn.modified_ms)\n", "            pass\n", _TORN_TESTS),
    (_TORN, "    if dry_run:\n", "    if False:\n", _TORN_TESTS),
)  # fmt: skip
