# ruff: noqa: E501
"""Clocks and zones: an instant is not chosen before they agree with the table."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # Clocks and zones.
    ("timeline/clock/evidence", "instant.completion_time or instant.requested_time", "instant.requested_time", "evidence"),
    ("timeline/clock/evidence", "if len(chosen) < _FEW:", "if not chosen:", "evidence"),
    ("timeline/clock/evidence", "one[0].action in _WRITES]", "True]", "evidence"),
    ("timeline/clock/evidence", "one[0].completed and one[0].completion_time is None", "one[0].completion_time is None", "evidence"),
    ("timeline/clock/evidence", "    if behind and not _is_over(", "    if behind and not here and not _is_over(", "evidence"),
    ("timeline/clock/evidence", "    if behind and not _is_over(", "    if behind and True or _is_over(", "evidence"),
    ("timeline/clock/evidence", "(max(places) - min(places) + 1)", "len(places)", "evidence"),
    ("timeline/clock/evidence", "sum(newest.index(s) < min(places) for s in here)", "len(here)", "evidence"),
    ("timeline/clock/evidence", "sum(newest.index(s) < min(places) for s in here)", "min(places)", "evidence"),
    ("timeline/clock/evidence", "_NEWEST = 20", "_NEWEST = 30", "evidence"),
    ("timeline/clock/evidence", "    if here:\n", "    if False:\n", "evidence"),
    ("timeline/clock/evidence", "(offset + early) // _STEP", "offset // _STEP", "evidence"),
    ("timeline/clock/evidence", "abs(zone) > _FARTHEST or ", "", "evidence"),
    ("timeline/clock/evidence", " or late > _LATE:", ":", "evidence"),
    ("timeline/clock/evidence", ">= _MOVED and abs(a.late - b.late) <= gap / 2", ">= _MOVED", "evidence"),
    ("timeline/clock/evidence", "close and len(seen) == of > 1", "close and len(seen) > 1", "evidence"),
    ("timeline/clock/evidence", "close and len(seen) == of > 1", "close and len(seen) == of", "evidence"),
    ("timeline/clock/evidence", "    return close and", "    return", "evidence"),
    ("timeline/clock/guard", "(verdict.zone is Zone.AHEAD and not layout.has_completion_times)", "verdict.zone is Zone.AHEAD", "clock"),
    ("timeline/clock/guard", "verdict.zone is Zone.BEHIND or (", "False or (", "clock"),
    ("timeline/clock/guard", "    if seen.newest_ms and now_ms() - seen.newest_ms <= skew_ms:", "    if True:", "clock"),
    ("timeline/storage/server_clock", "        storage.delete(path)\n", "        pass\n", "clock"),
    ("timeline/clock/guard", "    ahead_ms, skew_ms = stamp.written_ms - now_ms,", "    ahead_ms, skew_ms = 0,", "clock"),
    ("timeline/clock/guard", "        is_named = named_ms - now_ms > skew_ms\n", "        is_named = False\n", "clock"),
    ("timeline/instants/table_clock", "            used.append(_Used(self.moment(unnamed.written_ms), None))\n", "", "clock"),
    ("timeline/instants/table_clock", "        if time <= bound:\n", "        if True:\n", "future"),
    ("timeline/instants/table_clock", "        is_visible = self.by.is_write and self.by.completed\n", "        is_visible = False\n", "future"),
    ("timeline/instants/table_clock", "        is_visible = self.by.is_write and self.by.completed\n", "        is_visible = True\n", "future"),
    ("timeline/instants/table_clock", " and self.by.requested_time not in going", "", "future"),
    ("timeline/instants/table_clock", "return self._chosen(used, timeline, verdict, self._shown(), undone, probes=True)", "return self._chosen(used, timeline, verdict, self.now(), undone, probes=True)", "future"),
    ("timeline/instants/table_clock", "        if probes:\n", "        if False:\n", "future"),
    ("timeline/instants/table_clock", "always=decided and time not in of)", "always=False)", "decision"),
    ("compactor_daemon/attempt/compact_instant", "        table.times.check_reached(attempt.instant, timeline)\n", "", "future"),
    ("timeline/instants/since_compaction", "real_time(self.instant)", "parse_time(self.instant)", "future"),
    ("timeline/recovery/modification_times", "(later and not slice_.logs)", "later", "clock"),
    ("timeline/recovery/modification_times", "(later and not slice_.logs)", "False", "clock"),
    ("timeline/recovery/modification_times", "elif later and time >= later[0].base_instant:", "elif False:", "clock"),
    ("timeline/recovery/modification_times", "if time < base.ljust(len(time), \"0\"):", "if False:", "clock"),
    ("timeline/recovery/modification_times", "entry.modified_ms != wanted", "False", "clock"),
    ("compactor_daemon/attempt/compact_instant", "        table.times.check_zone(view.timeline)\n", "        pass\n", "clock"),
    ("compactor_daemon/daemon/table_on_storage", "            table.times.check_zone(timeline)\n", "            pass\n", "clock"),
)  # fmt: skip
