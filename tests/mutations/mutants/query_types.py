# ruff: noqa: E501
"""Reads of a moment or of a window: which writes they see, and which rows they deliver."""

from __future__ import annotations

from tests.mutations.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # The state at a completion time.
    ("timeline/instants/timeline", "(self.counts_from(instant) if instant.completed else instant.requested_time) <= time", "instant.requested_time <= time", "table/view_at_completion"),
    ("timeline/instants/timeline", "else instant.requested_time) <= time", "else instant.requested_time) < time", "table/view_at_completion"),
    ("timeline/instants/timeline", "else instant.requested_time) <= time", "else '') <= time", "table/view_at_completion"),
    ("timeline/instants/timeline", 'write.requested_time if write.action == "commit" else self.moment_of(write)', "self.moment_of(write)", "table/view_at_completion"),
    ("timeline/instants/timeline", "instants=tuple(sorted([*kept, *late],", "instants=tuple(sorted([*kept],", "table/view_at_completion"),
    ("timeline/instants/timeline", "for i in gone if (i.requested_time, i.family) not in active]", "for i in gone]", "table/view_at_completion"),
    ("timeline/instants/timeline", "archived=tuple(i for i in self.archived if i not in gone)", "archived=self.archived", "table/view_at_completion"),
    ("timeline/instants/timeline", "action=instant.family, state=State.INFLIGHT)", "action=instant.action, state=State.INFLIGHT)", "table/view_at_completion"),
    ("timeline/log/visibility", " or block.instant in visibility.hidden:", ":", "log/visibility"),
    # Windows.
    ("timeline/windows/window", "if end is not None and end < begin:", "if end is not None and end <= begin:", "windows/window"),
    ("timeline/windows/window", "if end is not None and end < begin:", "if False:", "windows/window"),
    ("timeline/windows/window", "newest if end is None else min(end, newest)", "newest if end is None else end", "windows/window"),
    ("timeline/windows/window", "end=max(begin, newest", "end=max('', newest", "windows/window"),
    ("timeline/windows/window", "if w.requested_time < pending]", "]", "windows/window"),
    ("timeline/windows/window", "begin_requested=begin not in moments and begin in", "begin_requested=begin in", "windows/window"),
    ("timeline/windows/retained", "if w.requested_time < retained)", "if w.requested_time <= retained)", "windows/window"),
    ("timeline/windows/retained", "timeline.counts_from(w) for w in before", "timeline.moment_of(w) for w in before", "windows/window"),
    ("timeline/windows/incremental", "scanned = window.end < earliest", "scanned = False", "reading/incremental"),
    ("timeline/windows/incremental", "everything = window.begin == EARLIEST and not scanned", "everything = window.begin == EARLIEST", "reading/incremental"),
    ("timeline/windows/incremental", "if scanned or found.groups is None or g.key in found.groups)", ")", "reading/incremental"),
    ("timeline/windows/incremental", "if window.begin >= oldest:", "if True:", "windows/wanted_rows"),
    ("timeline/windows/incremental", "return And((after, Compare(COMMIT_TIME, Op.LE, window.end)))", "return after", "reading/incremental"),
    ("timeline/windows/window_writes", "times is not None and times.isdisjoint(writes)", "False", "reading/incremental_log_compaction"),
    ("timeline/windows/retained", 'or metadata["totalFilesDeleted"] == 0:', "or True:", "reading/as_of_cleaned"),
    ("timeline/windows/retained", 'or metadata["totalFilesDeleted"] == 0:', "or False:", "reading/as_of_cleaned"),
    # The change feed.
    ("timeline/read/change_rows", "self.updated[there] = ~np.asarray(pc.fill_null(same, False))", "self.updated[there] = True", "reading/changes"),
    ("timeline/read/change_rows", "self.met[there] = True", "pass", "reading/changes"),
    ("timeline/read/change_rows", "deleted = np.flatnonzero(places < 0)", "deleted = np.flatnonzero(places < -1)", "reading/changes"),
    ("timeline/read/changes", "if window.begin < earliest:", "if False:", "reading/changes"),
    ("timeline/read/changes", 'groups[(key[0], "") if key[0] in moved else key]', "groups[key]", "reading/changes"),
    ("timeline/read/changes", "there & (found.groups | left)", "there & found.groups", "reading/changes"),
    ("timeline/read/changes", "frozenset() if self.options.net else found.replaced & left", "frozenset()", "reading/changes"),
    ("timeline/read/changes", "hidden=state.hidden | also_hidden", "hidden=state.hidden", "reading/changes"),
    ("timeline/read/changes", "if not found.compacted_logs and not found.clusterings:", "if True:", "reading/changes_and_services"),
    ("timeline/read/changes", "for instant in set(clustered.values()):", "for instant in set():", "reading/changes_and_services"),
    ("timeline/windows/streamed", "moment=max(one.moment, earliest)", "moment=one.moment", "spark_source/stream"),
    ("timeline/windows/streamed", "else archived.get(write)", "else None", "spark_source/stream"),
    # Pins.
    ("timeline/pins/pin", "return now_ms < self.expires_ms", "return True", "pins/pin"),
    ("timeline/pins/hold", "if self._storage.find(self._path) is None:", "if False:", "pins/pin"),
    ("timeline/pins/shared", "self._put(storage, newest + 1)", "self._put(storage, newest)", "pins/shared"),
    ("timeline/pins/shared", "age_ms >= self.options.for_s", "age_ms > 2 * self.options.for_s", "pins/shared"),
    ("timeline/pins/shared", 'rf"{self.query}-', 'rf"[0-9a-f]+-', "pins/shared"),
    ("timeline/pins/shared", "self._put(storage, newest + 1):", "self._put(storage, newest + 1) is None:", "pins/shared"),
    ("timeline/pins/retain", "if timeline.counts_from(write) > earliest)", "if write.requested_time > earliest)", "pins/retain"),
    ("timeline/pins/retain", "(*later, *timeline.pending_writes)", "later", "pins/retain"),
    ("timeline/pins/retain", "(retain is None or replaced < retain):", "True:", "pins/retain"),
    ("timeline/pins/retain", "if one.base_instant >= first:", "if one.base_instant > first:", "pins/retain"),
    ("timeline/read/held_moment", "options.begin if options.query is Query.CHANGES else options.end", "options.end", "reading/pins"),
    ("timeline/read/origins", "key=lambda origin: max(origin.stamps), reverse=True", "key=lambda origin: max(origin.stamps)", "read/origins"),
    # What is left to Spark's own reader.
    ("pyspark_phantombase/native", "slice_.base is None or slice_.logs or is", "slice_.base is None or is", "pyspark_phantombase/native"),
    ("pyspark_phantombase/native", "field.type == wanted.type and", "", "pyspark_phantombase/native"),
    ("pyspark_phantombase/native", "required = wanted.nullable or not field.nullable", "required = True", "pyspark_phantombase/native"),
    ("pyspark_phantombase/native", "wanted.nullable and _is_simple", "_is_simple", "pyspark_phantombase/native"),
    ("pyspark_phantombase/native", "len(by_case) < len(found.names) or", "", "pyspark_phantombase/native"),
    ("pyspark_phantombase/native", "OPERATION in found.names or", "", "pyspark_phantombase/native"),
    ("pyspark_phantombase/native", "if name is None:", "if name != wanted.name:", "pyspark_phantombase/native"),
    ("pyspark_phantombase/native", "part.startswith(_HIDDEN)", "part.startswith('.')", "pyspark_phantombase/native"),
    ("pyspark_phantombase/frame", '"ignoreMissingFiles": "false",', "", "spark_source/frame"),
    ("pyspark_phantombase/frame", "scan.where is not None or scan", "scan", "spark_source/frame"),
)  # fmt: skip
