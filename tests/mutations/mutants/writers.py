# ruff: noqa: E501
"""Writers beside others: conflicts, streams, back-pressure."""

from __future__ import annotations

from tests.mutations.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # Writing.
    ("writer_hooks/commit/conflict", "return f\"file group {'/'.join(key)}\"", "continue", "commit/conflict"),
    ("writer_hooks/commit/conflict", "(mine.appended | mine.rewritten) & groups", "mine.appended & groups", "commit/conflict"),
    ("writer_hooks/commit/conflict", " | theirs.replaced_groups", "", "commit/conflict"),
    ("writer_hooks/commit/conflict", "mine.buckets & {", "set() & {", "commit/conflict"),
    ("writer_hooks/commit/conflict", "if s.num_inserts and _is_base(s.path)", "if _is_base(s.path)", "commit/conflict"),
    ("writer_hooks/commit/conflict", "sorted(mine.inserts & new)", "sorted(set())", "commit/conflict"),
    ("writer_hooks/commit/conflict", "if logs_too or mine.looked_up else", "if logs_too else", "commit/conflict"),
    ("writer_hooks/commit/conflict", "mine.rewritten | mine.appended if", "mine.appended if", "commit/conflict"),
    ("writer_hooks/commit/conflict", "else mine.rewritten\n", "else frozenset()\n", "commit/conflict"),
    ("writer_hooks/index/insert_plan", "group.pending_compaction is not None or ", "", "commit/conflict"),
    ("writer_hooks/index/insert_plan", "group.key in busy or ", "", "commit/conflict"),
    ("writer_hooks/index/insert_plan", "or last.logs:", "or False:", "commit/conflict"),
    ("writer_hooks/index/insert_plan", "if last.base.size < small_file_bytes else 0", "", "commit/conflict"),
    ("writer_hooks/commit/stream_batches", "if intent.batch > batch.number:", "if False:", "commit/conflict"),
    ("writer_hooks/commit/stream_batches", "if intent.instant in timeline.pending_writes:\n        return None", "if intent.instant in timeline.pending_writes:\n        return intent.instant", "commit/conflict"),
    ("writer_hooks/commit/stream_batches", "return intent.instant if any(", "return None if any(", "commit/conflict"),
    # Back-pressure.
    ("writer_hooks/commit/back_pressure", ">= limit\n", "> limit\n", "writing/back_pressure"),
    ("writer_hooks/commit/back_pressure", "(slice_ := latest_slice(group)) is not None", "(slice_ := group.slices[-1] if group.slices else None) is not None", "writing/back_pressure"),
    ("writer_hooks/commit/back_pressure", "if appends_to(g)), limit)", "), limit)", "writing/back_pressure"),
    ("writer_hooks/commit/back_pressure", "if not (self._compacts or", "if not (True or", "writing/back_pressure"),
    ("writer_hooks/commit/back_pressure", "or wanted is not None or", "or", "writing/back_pressure"),
    ("timeline/planning/schedule", "            for one in requested:\n", "            remove_wanted(table.storage)\n            for one in requested:\n", "writing/back_pressure"),
    ("writer_hooks/commit/back_pressure", "if self._options.action is FullAction.WAIT else 0.0", "", "writing/back_pressure"),
    ("writer_hooks/commit/back_pressure", "if not is_replaced(group, facts)]", "]", "writing/back_pressure"),
    ("writer_hooks/write/write", "due_at_once(own) if unplanned else own", "own", "writing/back_pressure"),
    ("writer_hooks/write/write", "        _roll_back_dead(now, now.load_timeline(), job)  # on version 6 the write of a dead writer blocks every plan\n", "", "writing/back_pressure"),
    ("writer_hooks/write/write", "(BackPressure() if job.batch is not None else NO_LIMIT)", "NO_LIMIT", "writing/back_pressure"),
    ("writer_hooks/write/write", "(BackPressure() if job.batch is not None else NO_LIMIT)", "BackPressure()", "writing/back_pressure"),
    ("writer_hooks/write/write", "        if what.options.buckets is not None and not what.operation.replaces:\n            _check_buckets(room, counts)\n", "", "writing/back_pressure"),
    ("writer_hooks/write/write", "            room.check((partition for partition, _ in mine.appended), lambda group: group.key in mine.appended)\n", "", "writing/back_pressure"),
    ("writer_hooks/commit/after_commit", "        strategy=TriggerStrategy.TIME_ELAPSED,\n", "        strategy=TriggerStrategy.ALWAYS,\n", "writing/back_pressure"),
    ("writer_hooks/commit/after_commit", "    at_once = ScheduleOptions(\n", "    at_once = replace(\n        own,\n", "writing/back_pressure"),
    ("writer_hooks/commit/transaction", "    except UnknownCommitError:\n        raise\n", "", "object_store/unknown_commit"),
    ("timeline/table/instant_puts", "            if storage.is_file_system:\n", "            if True:\n", "object_store/unknown_commit"),
    # Overwrites.
    ("writer_hooks/commit/conflict", "changed if mine.overwrites_all else changed & mine.overwritten", "changed & mine.overwritten", "writing/overwrite"),
    ("writer_hooks/commit/conflict", "else changed & mine.overwritten", "else frozenset()", "writing/overwrite"),
    ("writer_hooks/commit/conflict", "return found if theirs.operation_type == CLUSTER else ", "return ", "commit/conflict"),
    ("writer_hooks/commit/conflict", "else found | (mine.partitions & replaced)", "else found", "writing/overwrite"),
    ("writer_hooks/commit/conflict", "(mine.rewritten | mine.appended | mine.replaced) & set(c", "(mine.rewritten | mine.appended) & set(c", "writing/overwrite"),
    ("writer_hooks/commit/replacing", "if g.slices and not is_replaced(g, facts)]", "if g.slices]", "writing/overwrite"),
    ("writer_hooks/commit/replacing", "    if write.operation is Operation.DELETE_PARTITION:\n", "    if False:\n", "writing/overwrite"),
    ("writer_hooks/commit/replacing", "of_rows.union(table.partitions())", "of_rows", "writing/overwrite"),
    ("writer_hooks/commit/replacing", "map(re.escape, pattern.split(\"*\"))", "pattern.split(\"*\")", "writing/overwrite"),
    ("writer_hooks/commit/replacing", "wanted.fullmatch(partition)", "wanted.match(partition)", "writing/overwrite"),
    ("writer_hooks/commit/opening", "{} if operation is Operation.DELETE_PARTITION else _profile(rows)", "{}", "writing/overwrite"),
    ("writer_hooks/write/write", "    refuse_planned(table, instant, job.write, mine.replaced)\n", "", "writing/overwrite"),
    ("writer_hooks/write/writer", "or not all(named) or not named:", "or not named:", "writing/overwrite"),
    ("writer_hooks/index/key_index", " if g.key not in self.work.replaced]", "]", "writing/overwrite"),
    ("writer_hooks/index/bucket_step", "there.key in self.work.replaced:", "False:", "writing/overwrite"),
    ("writer_hooks/write/write", "_is_written(table, lock, batch, action_of(what.operation))", "_is_written(table, lock, batch, \"deltacommit\")", "writing/overwrite_faults"),
    ("timeline/format/replace_request", "names_deletes and operation", "operation", "writing/overwrite"),
)  # fmt: skip
