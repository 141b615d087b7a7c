# ruff: noqa: E501
"""Archiving: which instants go, and the order in which the archive and the active timeline change."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

_CHOICE = "timeline/archiving/choice"

MUTANTS: tuple[Mutant, ...] = (
    ("timeline/storage/local", "if len(entries) == len(names) or names == before:", "if True:", "archiving/archive"),
    (_CHOICE, "    if count <= options.begins_above(count):", "    if count < options.begins_above(count):", "archiving/choice"),
    (_CHOICE, "    time = before[-1] if before else first.requested_time", "    time = first.requested_time", "archiving/choice"),
    (_CHOICE, "    yield from _pending(timeline)\n", "", "archiving/choice"),
    (_CHOICE, "    yield from _beside_pending(timeline, facts)\n", "", "archiving/choice conflict"),
    (_CHOICE, "if _completed(timeline, facts, i) >= first)", "if i.requested_time >= first)", "archiving/choice conflict"),
    (_CHOICE, "_first(facts.begun.get(time, time) for time in pending)", "_first(pending)", "archiving/choice"),
    (_CHOICE, "    yield from _trigger(timeline, options.compaction_commits)\n", "", "archiving/choice"),
    (_CHOICE, "    yield from _replaced(timeline, facts)\n", "", "archiving/choice archiving/archive"),
    ("timeline/archiving/history", "instant.completion_time in (None, completion):", "instant.completion_time == completion:", "archiving/archive"),
    (_CHOICE, "if t >= facts.cleaned_to)", "if t > facts.cleaned_to)", "archiving/choice"),
    (_CHOICE, "    yield from _metadata(timeline, facts)\n", "", "archiving/choice"),
    (_CHOICE, "timeline.completed_at(i) >= compacted", "timeline.completed_at(i) > compacted", "archiving/choice"),
    (_CHOICE, "_late(timeline, facts, going) or _left_out", "_left_out", "archiving/choice"),
    (_CHOICE, "_late(timeline, facts, going) or _left_out(facts, going)", "_late(timeline, facts, going)", "archiving/choice restoring/left_out"),
    ("compactor_daemon/archiving/archive", "in table.facts.left_out(timeline).items()", "in ()", "restoring/left_out"),
    (_CHOICE, "and _told(timeline, facts, i)]", "]", "archiving/choice"),
    (_CHOICE, "for action in _WITH_WRITES if timeline.layout.has_completion_times else _BY_COUNT:", "for action in _BY_COUNT:", "archiving/choice"),
    (_CHOICE, " or _first_stays(timeline, going, services)", "", "archiving/choice"),
    ("timeline/windows/retained", "for clean in archived)))", "for clean in ())))", "archiving/archive"),
    ("timeline/instants/clean_border", "clean.requested_time if record is None else _border", "clean.requested_time if True else _border", "archiving/archive"),
    ("timeline/windows/retained", "as_of < timeline.start and timeline.layout.has_completion_times:", "False:", "archiving/archive"),
    (_CHOICE, "(earliest is None or i.requested_time < earliest) and ", "", "archiving/choice"),
    ("timeline/archiving/options", "if commits > self.commits_retained else 0", "", "archiving/choice"),
    ("timeline/archiving/archive", "storage.delete_all([f.path for f in files if not f.instant.completed])", "pass", "archiving/archive"),
    ("timeline/archiving/manifest", "            _withdraw_older(storage, folder, number)\n", "", "archiving/choice"),
    ("timeline/archiving/manifest", "        if counting is not None and counting > number:\n            break\n", "", "archiving/choice"),
    ("timeline/archiving/manifest", "_TRIES = 3", "_TRIES = 1", "archiving/choice"),
    ("timeline/archiving/levels", "                storage.place(kept, path)\n", "                pass\n", "archiving/choice"),
    ("timeline/archiving/levels", "for name in files if name in once_named]", "for name in files]", "archiving/choice"),
    ("timeline/archiving/manifest", "    number = before.last + 1\n", "    number = before.number + 1\n", "archiving/archive"),
    ("timeline/archiving/manifest", "            if counting is None or number <= counting:\n", "            if True:\n", "archiving/archive"),
    ("timeline/archiving/history", "    storage.delete(final)\n", "", "archiving/archive"),
    ("timeline/archiving/history", "        if by_key and HistoryName.of(file.name, path).last >= first:", "        if False:", "archiving/archive"),
    ("timeline/archiving/archive", "        if not here:\n            break\n", "        break\n", "archiving/archive"),
    ("compactor_daemon/archiving/archive", "            seen = _look(seen.table) if rest else seen\n", "", "archiving/archive"),
    ("compactor_daemon/archiving/archive", "    tidy(table, lock)\n", "", "archiving/archive"),
    ("compactor_daemon/archiving/archive", "    forget_archived(table)\n", "", "archiving/archive"),
    ("compactor_daemon/services/options", "max(own.compaction_commits, self.counted_commits)", "own.compaction_commits", "users"),
    ("compactor_daemon/archiving/archive", "[i for i in choice.archived if i.family == \"replacecommit\"]", "[]", "archiving/archive"),
    ("compactor_daemon/archiving/archive", "            seen.table.times.check_zone_of(some, seen.timeline)\n", "", "clock"),
    ("compactor_daemon/archiving/archive", "    seen.table.times.check_zone_of(choice.archived, seen.timeline)\n", "", "clock"),
    ("compactor_daemon/archiving/archive", "return consistent(lambda: _would_archive(table.reload(), options))", "return _would_archive(table.reload(), options)", "archiving/archive"),
    ("timeline/metadata_table/services/archive", "    table.times.check_zone_of(choice.archived, data)\n", "", "services/archive"),
    ("timeline/instants/timeline_loader", "if archived or not timeline.completed else", "if archived else", "users"),
    ("timeline/table/schema_finder", "    if not timeline.completed_writes:\n", "    if False:\n", "users"),
    ("writer_hooks/schema/write_schema", "not timeline.has_rows and", "not timeline.completed_writes and", "users"),
)  # fmt: skip
