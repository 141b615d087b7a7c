# ruff: noqa: E501
"""Mutants of the commands: executor, dry runs, settings, exit codes."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

_CHOICE = "compactor_daemon/execution/executor_choice"
_SETTINGS = "timeline/terminal/settings"

MUTANTS: tuple[Mutant, ...] = (
    (_CHOICE, "if work.read_bytes <= LARGE_BYTES:", "if work.read_bytes < LARGE_BYTES:", "spark_start"),
    (_CHOICE, "    if not machine.java:", "    if False:", "spark_start"),
    (_CHOICE, "fits = max(1, machine.free_memory // work.slice_memory)", "fits = machine.free_memory // work.slice_memory", "spark_start"),
    ("compactor_daemon/options", "        if self.master is not None:\n            return", "        if False:\n            return", "spark_start"),
    ("compactor_daemon/removal/unschedule", "                if dry_run:\n", "                if False:\n", "narrowed"),
    ("compactor_daemon/restoring/rollback", "        if dry_run:\n", "        if False:\n", "narrowed"),
    ("timeline/recovery/savepoint", "        if dry_run:\n            if table", "        if False:\n            if table", "narrowed"),
    ("compactor_daemon/cli/compact", "    if schedule and instant is not None:", "    if False:", "config"),
    ("compactor_daemon/cli/compact", "    if schedule and not dry_run:\n        check", "    if False:\n        check", "config"),
    (_SETTINGS, '"run": frozenset({"schedule", "tables"})', '"run": frozenset({"schedule", "tables"}), "compact": frozenset({"schedule"})', "config"),
    (_SETTINGS, "*_BESIDE.get(command, ()), command):", "command, *_BESIDE.get(command, ())):", "config"),
    (_SETTINGS, 'WRITES: ("schedule",)', "WRITES: ()", "settings"),
    ("writer_hooks/write/writer", "        if self.options != WriteOptions():", "        if False:", "settings"),
    ("writer_hooks/write/settings", "back_pressure=pressure if limited else None", "back_pressure=pressure", "settings"),
    ("timeline/locks/table_lock", "_named(storage, given) if NAME in given else given", "given", "locks/table_lock"),
    ("timeline/locks/table_lock", 'name in ("", ".", "..") or "/" in name', "not name", "locks/table_lock"),
    (_SETTINGS, "        if len(given) < len(values):", "        if False:", "config"),
    ("compactor_daemon/cli/config", 'if name == "storage-option" and value:', "if False:", "config"),
    ("compactor_daemon/status/outlook", "        if group.pending_compaction is None\n        and not", "        if not", "coexistence"),
)  # fmt: skip
