"""How many instants stay on the active timeline: the options of archiving, defined only here (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phantombase.timeline.option import check_below, check_least, option


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions:
    """Nothing is archived until more than `max_instants` commits are completed; then all but the newest `min_instants`.

    The other options raise `min_instants` where a cleaner or a trigger of compactions still counts older commits.
    """

    min_instants: int = option(20, "commits that stay on the active timeline (hoodie.keep.min.commits)")
    max_instants: int = option(30, "commits above which archiving begins (hoodie.keep.max.commits)")
    commits_retained: int = option(
        10, "commits that the cleaner retains (hoodie.clean.commits.retained); two more than these stay"
    )
    compaction_commits: int = option(
        5,
        "delta commits that make a compaction due (hoodie.compact.inline.max.delta.commits); as many stay behind the "
        "last compaction",
    )

    def __post_init__(self) -> None:
        check_least(self, _LEAST)
        check_below(self, "min_instants", "max_instants")

    def beside_cleaner(self, commits_retained: int) -> ArchiveOptions:
        """The same, with bounds that leave a cleaner which retains so many commits enough of them, as Hudi raises them.

        Else a cleaner that retains more than `max_instants` would never see enough of them, and remove nothing.
        """
        more = max(0, commits_retained + 2 - self.min_instants)
        return replace(
            self,
            min_instants=self.min_instants + more,
            max_instants=self.max_instants + more,
            commits_retained=max(self.commits_retained, commits_retained),
        )

    def kept(self, commits: int) -> int:
        """How many of the completed commits stay. A cleaner retains some only where there are more than these."""
        cleaned = self.commits_retained + 2 if commits > self.commits_retained else 0
        return max(self.min_instants, cleaned)

    def begins_above(self, commits: int) -> int:
        """The number of completed commits above which archiving begins: as far above `kept` as the options say."""
        return self.kept(commits) + self.max_instants - self.min_instants


_LEAST = {"min_instants": 2, "max_instants": 3, "commits_retained": 1, "compaction_commits": 1}
