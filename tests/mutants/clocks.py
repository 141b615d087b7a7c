# ruff: noqa: E501
"""Clocks and zones: an instant is not chosen before they agree with the table."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # Clocks and zones.
    ("clock_evidence", "instant.completion_time or instant.requested_time", "instant.requested_time", "clock_evidence"),
    ("clock_evidence", "if len(chosen) < _FEW:", "if not chosen:", "clock_evidence"),
    ("clock_evidence", "one[0].action in _WRITES]", "True]", "clock_evidence"),
    ("clock_evidence", "one[0].completed and one[0].completion_time is None", "one[0].completion_time is None", "clock_evidence"),
    ("clock_evidence", "    if behind and not _is_over(", "    if behind and not here and not _is_over(", "clock_evidence"),
    ("clock_evidence", "    if behind and not _is_over(", "    if behind and True or _is_over(", "clock_evidence"),
    ("clock_evidence", "(max(places) - min(places) + 1)", "len(places)", "clock_evidence"),
    ("clock_evidence", "sum(newest.index(s) < min(places) for s in here)", "len(here)", "clock_evidence"),
    ("clock_evidence", "sum(newest.index(s) < min(places) for s in here)", "min(places)", "clock_evidence"),
    ("clock_evidence", "_NEWEST = 20", "_NEWEST = 30", "clock_evidence"),
    ("clock_evidence", "    if here:\n", "    if False:\n", "clock_evidence"),
    ("clock_evidence", "(offset + early) // _STEP", "offset // _STEP", "clock_evidence"),
    ("clock_evidence", "abs(zone) > _FARTHEST or ", "", "clock_evidence"),
    ("clock_evidence", " or late > _LATE:", ":", "clock_evidence"),
    ("clock_evidence", ">= _MOVED and abs(a.late - b.late) <= gap / 2", ">= _MOVED", "clock_evidence"),
    ("clock_evidence", "close and len(seen) == of > 1", "close and len(seen) > 1", "clock_evidence"),
    ("clock_evidence", "close and len(seen) == of > 1", "close and len(seen) == of", "clock_evidence"),
    ("clock_evidence", "    return close and", "    return", "clock_evidence"),
    ("clock_guard", "(verdict.zone is Zone.AHEAD and not layout.has_completion_times)", "verdict.zone is Zone.AHEAD", "clock"),
    ("clock_guard", "verdict.zone is Zone.BEHIND or (", "False or (", "clock"),
    ("clock_guard", "    if seen.newest_ms and now_ms() - seen.newest_ms <= skew_ms:", "    if True:", "clock"),
    ("clock_guard", "        storage.delete(path)\n", "        pass\n", "clock"),
    ("clock_guard", "    if ahead_ms > options.clock_skew_s * 1000:", "    if False:", "clock"),
    ("clock_guard", "verdict.zone is Zone.AGREES and zones", "False", "clock"),
    ("table_clock", "            used.append(self.moment(unnamed.written_ms))\n", "", "clock"),
    ("mistimed", "(later and not slice_.logs)", "later", "clock"),
    ("mistimed", "(later and not slice_.logs)", "False", "clock"),
    ("mistimed", "elif later and time >= later[0].base_instant:", "elif False:", "clock"),
    ("mistimed", "if time < base.ljust(len(time), \"0\"):", "if False:", "clock"),
    ("mistimed", "entry.modified_ms != wanted", "False", "clock"),
    ("compactor_daemon/compactor", "        table.times.check_zone(view.timeline)\n", "        pass\n", "clock"),
    ("compactor_daemon/served_table", "            table.times.check_zone(timeline)\n", "            pass\n", "clock"),
)  # fmt: skip
