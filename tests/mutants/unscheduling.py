# ruff: noqa: E501
"""Taking a plan back."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    ("compactor_daemon/unschedule", "        storage.put_if_absent(path, data)\n", "", "unschedule"),
    ("compactor_daemon/unschedule", "        ended |= _end_attempts(storage, instant, who)\n", "        pass\n", "unschedule"),
    ("compactor_daemon/untouched", "    if by_base and pending and not plan.merges_logs:", "    if False:", "unschedule"),
    ("compactor_daemon/untouched", "if path in placed or not (logs_too or isinstance(name, BaseFileName)):", "if True:", "unschedule"),
    ("compactor_daemon/untouched", "    refuse_rollback(table, instant)\n    pending", "    pending", "unschedule"),
    ("compactor_daemon/unschedule", "        refuse_inflight(table, instant, inflight, options)\n", "", "unschedule"),
    ("compactor_daemon/untouched", "    if trace.is_live(round(time.time() * 1000), options):", "    if False:", "unschedule"),
    ("compactor_daemon/unschedule", "    remove_staged(storage, instant)\n", "", "unschedule"),
    ("compactor_daemon/unschedule", "if movable_keys(_view(table, instant), instant, deletes) == keys:", "if True:", "unschedule"),
    ("compactor_daemon/moved_keys", "base.name.instant > instant", "False", "unschedule"),
    ("compactor_daemon/moved_keys", "if len(gone) and keys.pending:", "if False:", "unschedule"),
    ("compactor_daemon/moved_keys", "pa.array(~lives)", "pa.array(lives | True)", "unschedule"),
)  # fmt: skip
