"""The files of instants: one for each state that an instant has passed through."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..format.instant import Instant
from ..format.table_config import TableConfig
from ..storage.contract import Storage, list_of_table


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A file of the timeline. `instant`: in the state that the file's name gives; `size` in bytes."""

    instant: Instant
    path: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFiles:
    """All state files of a timeline, by (requested time, family), lowest state first."""

    of: Mapping[tuple[str, str], Sequence[StateFile]]

    def files(self, instant: Instant) -> Sequence[StateFile]:
        """The files of an instant."""
        return self.of.get(instant.identity, ())

    def written(self, instants: Iterable[Instant], moment: Callable[[int], str]) -> dict[str, str]:
        """When the completed files of instants were written, by requested time.

        `moment`: converts a modification time to an instant time.
        """
        return {
            i.requested_time: moment(f.modified_ms)
            for i in instants
            if i.completed
            for f in self.files(i)
            if f.instant.completed
        }

    def begun(self, instants: Iterable[Instant], moment: Callable[[int], str]) -> dict[str, str]:
        """When the first files of pending instants were written, as `written`."""
        first = ((i, next(iter(self.files(i)), None)) for i in instants if not i.completed)
        return {i.requested_time: moment(f.modified_ms) for i, f in first if f is not None}

    def doubled(self) -> frozenset[str]:
        """Times of instants with more than one completed file."""
        return frozenset(time for (time, _), files in self.of.items() if sum(f.instant.completed for f in files) > 1)


def load_state_files(storage: Storage, config: TableConfig) -> StateFiles:
    """Lists the timeline's folder."""
    found: defaultdict[tuple[str, str], list[StateFile]] = defaultdict(list)
    for entry in list_of_table(storage, config.timeline_folder):
        instant = None if entry.is_folder else config.layout.parse(entry.name)
        if instant is not None:
            found[instant.requested_time, instant.family].append(
                StateFile(
                    instant=instant,
                    path=f"{config.timeline_folder}/{entry.name}",
                    size=entry.size,
                    modified_ms=entry.modified_ms,
                )
            )
    return StateFiles(of={key: sorted(files, key=lambda f: f.instant.state) for key, files in found.items()})


def of_instants(files: StateFiles, instants: Iterable[Instant]) -> list[StateFile]:
    """The state files of these instants, in the order of the instants."""
    return [one for instant in instants for one in files.files(instant)]
