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
)  # fmt: skip
