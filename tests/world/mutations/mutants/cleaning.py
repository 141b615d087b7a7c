# ruff: noqa: E501
"""Cleaning: what keeps a file, and the order in which a clean works."""

from __future__ import annotations

from tests.world.mutations.mutants.mutant import Mutant

_CHOICE = "timeline/cleaning/choice"
_CLEAN = "compactor_daemon/cleaning/clean"
_EXECUTE = "compactor_daemon/cleaning/execute"
_FACTS = "compactor_daemon/cleaning/facts"
_PENDING = "compactor_daemon/cleaning/pending"
_WOULD = "compactor_daemon/cleaning/would_clean"

MUTANTS: tuple[Mutant, ...] = (
    (_CHOICE, "    yield _pending(timeline)\n", "", "cleaning/clean"),
    (_CHOICE, "    if facts.holds:\n", "    if False:\n", "cleaning/clean"),
    (_CHOICE, "_completed(timeline, facts, i) > facts.floor]", "False]", "cleaning/clean"),
    (_CHOICE, "max(facts.written.get(write.requested_time, \"\"), timeline.completed_at(write))", "timeline.completed_at(write)", "borders"),
    (_CHOICE, "first = min(borders, key=lambda b: b.time, default=None)", "first = max(borders, key=lambda b: b.time, default=None)", "cleaning/clean"),
    (_CHOICE, "    if any(file.path in facts.savepoints for file in slice_.files):\n", "    if False:\n", "cleaning/clean cleaning/golden"),
    (_CHOICE, "    if slice_.key in facts.clustering:\n", "    if False:\n", "cleaning/choice"),
    (_CHOICE, ", *(str(file.name) for file in slice_.changes))", ",)", "cleaning/choice"),
    (_CHOICE, " + sum(file.size for file in slice_.changes)", "", "cleaning/choice"),
    (_CHOICE, "retained is None or replaced < retained", "False", "cleaning/golden"),
    (_CHOICE, "commits[-n].requested_time if len(commits) > n", "commits[-1].requested_time if len(commits) > n", "cleaning/choice"),
    (_CHOICE, "    if facts.unfinished:\n", "    if False:\n", "cleaning/choice"),
    (_CHOICE, "now, left, partitions = list(replaced), ", "now, left, partitions = list[Gone](), ", "cleaning/choice"),
    (_EXECUTE, "    refuse_needed(table, instant, plan)\n", "", "cleaning/clean"),
    (_CLEAN, "    finished = finish_pending(table, lock)\n", "    finished = ()\n", "cleaning/clean"),
    (_EXECUTE, "    if (pins or known is None) and is_needed(table, plan, pins):\n", "    if False:\n", "cleaning/clean borders"),
    (_EXECUTE, "and not begin(table, now, plan, section):", "and False:", "borders"),
    (_EXECUTE, "if pin.path not in (known or ())]", "if False]", "cleaning/clean"),
    (_CLEAN, "if retained else None,", "if found else None,", "borders"),
    (_WOULD, "    finishing = to_finish(table)\n", "    finishing = {}\n", "borders"),
    (_WOULD, "without(view, gone) if gone else view", "view", "cleaning/dry_runs"),
    (_WOULD, "    if choice.gone:\n        table.times.check_zone(view.timeline)\n", "", "clock"),
    (_WOULD, "        table.commit_metadata(newest)  #", "        pass  #", "torn_commit"),
    (_PENDING, "instant.state is State.REQUESTED and is_needed(", "False and is_needed(", "cleaning/dry_runs"),
    (_CLEAN, "for time in there if time is not None)", "for time in there if False)", "borders"),
    (_CLEAN, "stays = [before, *", "stays = [retained, *", "borders"),
    (_CLEAN, ", *view.timeline.pending_writes]\n", "]\n", "cleaning/golden"),
    (_CLEAN, 'if i.action == "savepoint" and i.completed', "if False", "cleaning/golden"),
    (_CHOICE, "    borders += _replaced_but_kept(", "    _replaced_but_kept(", "cleaning/golden"),
    (_CHOICE, "told=not by_versions and", "told=", "cleaning/golden"),
    (_CHOICE, "(told and replaced >= saved and", "(told and", "cleaning/golden"),
    (_PENDING, "    needed |= frozenset(savepointed(table, view))\n", "", "borders"),
    (_EXECUTE, "if (pins or known is None) and", "if pins and", "borders"),
    (_EXECUTE, " and not timeline.pending_writes and", " and", "borders"),
    (_PENDING, "    if now.state > State.REQUESTED:\n", "    if False:\n", "borders"),
    (_PENDING, "now_ms() - entry.modified_ms < EXPIRY_S * 1000", "now_ms() - entry.modified_ms < 0", "borders"),
    (_FACTS, "    if not table.layout.has_completion_times or view.timeline.archived:\n", "    if True:\n", "borders"),
    (_CHOICE, "if since < timeline.start else first", "if False else first", "borders"),
    (_CHOICE, "        retained=retained,\n", "        retained=None if by_versions else retained,\n", "borders"),
    (_EXECUTE, "        apply_update(table, change, update, section)\n", "", "cleaning/clean"),
    (_CLEAN, "    forget_expired(table.storage)\n", "", "cleaning/clean"),
    ("timeline/format/clean", "        if \"/\" in name or parse_data_file(name) is None:\n", "        if False:\n", "cleaning/clean"),
    ("timeline/format/clean", "        if not inside_table(partition):\n", "        if False:\n", "cleaning/clean"),
)  # fmt: skip
