# ruff: noqa: E501
"""Writers beside others: conflicts, streams, back-pressure."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # Writing.
    ("writer_hooks/conflict", "return f\"file group {'/'.join(key)}\"", "continue", "writer_conflicts"),
    ("writer_hooks/conflict", "(mine.appended | mine.rewritten) & groups", "mine.appended & groups", "writer_conflicts"),
    ("writer_hooks/conflict", "(theirs.partition_to_replace_file_ids or {}).items()", "{}.items()", "writer_conflicts"),
    ("writer_hooks/conflict", "mine.buckets & {", "set() & {", "writer_conflicts"),
    ("writer_hooks/conflict", "if s.num_inserts and _is_base(s.path)", "if _is_base(s.path)", "writer_conflicts"),
    ("writer_hooks/conflict", "sorted(mine.inserts & new)", "sorted(set())", "writer_conflicts"),
    ("writer_hooks/conflict", "if logs_too or mine.looked_up else", "if logs_too else", "writer_conflicts"),
    ("writer_hooks/conflict", "mine.rewritten | mine.appended if", "mine.appended if", "writer_conflicts"),
    ("writer_hooks/conflict", "else mine.rewritten\n", "else frozenset()\n", "writer_conflicts"),
    ("writer_hooks/insert_plan", "group.pending_compaction is not None or ", "", "writer_conflicts"),
    ("writer_hooks/insert_plan", "group.key in busy or ", "", "writer_conflicts"),
    ("writer_hooks/insert_plan", "or last.logs:", "or False:", "writer_conflicts"),
    ("writer_hooks/insert_plan", "if last.base.size < small_file_bytes else 0", "", "writer_conflicts"),
    ("writer_hooks/stream", "if intent.batch > batch.number:", "if False:", "writer_conflicts"),
    ("writer_hooks/stream", "if intent.instant in timeline.pending_writes:\n        return None", "if intent.instant in timeline.pending_writes:\n        return intent.instant", "writer_conflicts"),
    ("writer_hooks/stream", "return intent.instant if any(", "return None if any(", "writer_conflicts"),
    # Back-pressure.
    ("writer_hooks/back_pressure", ">= limit\n", "> limit\n", "back_pressure"),
    ("writer_hooks/back_pressure", "(slice_ := latest_slice(group)) is not None", "(slice_ := group.slices[-1] if group.slices else None) is not None", "back_pressure"),
    ("writer_hooks/back_pressure", "if appends_to(g)), limit)", "), limit)", "back_pressure"),
    ("writer_hooks/back_pressure", "if not (self._compacts or", "if not (True or", "back_pressure"),
    ("writer_hooks/back_pressure", "or wanted is not None or", "or", "back_pressure"),
    ("timeline/schedule", "            for one in requested:\n", "            remove_wanted(table.storage)\n            for one in requested:\n", "back_pressure"),
    ("writer_hooks/back_pressure", "if self._options.action is FullAction.WAIT else 0.0", "", "back_pressure"),
    ("writer_hooks/back_pressure", "if not is_replaced(group, facts)]", "]", "back_pressure"),
    ("writer_hooks/write", "due_at_once(own) if unplanned else own", "own", "back_pressure"),
    ("writer_hooks/write", "        _roll_back_dead(table.reload(), job)  # on version 6 a dead one would keep every plan from being made\n", "", "back_pressure"),
    ("writer_hooks/write", "(BackPressure() if job.batch is not None else NO_LIMIT)", "NO_LIMIT", "back_pressure"),
    ("writer_hooks/write", "(BackPressure() if job.batch is not None else NO_LIMIT)", "BackPressure()", "back_pressure"),
    ("writer_hooks/write", "        if what.options.buckets is not None:\n            _check_buckets(room, counts)\n", "", "back_pressure"),
    ("writer_hooks/write", "            room.check((partition for partition, _ in mine.appended), lambda group: group.key in mine.appended)\n", "", "back_pressure"),
    ("writer_hooks/after_commit", "        strategy=TriggerStrategy.TIME_ELAPSED,\n", "        strategy=TriggerStrategy.ALWAYS,\n", "back_pressure"),
    ("writer_hooks/after_commit", "    at_once = ScheduleOptions(\n", "    at_once = replace(\n        said,\n", "back_pressure"),
)  # fmt: skip
