"""Whether a Hudi client and a state of a table agree on the timeline (pure).

A client sends the hash of its timeline, and its last instant, with every request
(`RemoteHoodieTableFileSystemView` of Hudi 0.15 and 1.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from ...format.instant import Instant, State
from ...instants.timeline import Timeline

NO_INSTANT = "0"
"""What a client without instants counts as its last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientState:
    """What a client knows: the time of its last instant, and the hash of its timeline."""

    last: str
    digest: str


def counted(timeline: Timeline) -> tuple[Instant, ...]:
    """The instants that a client's hash is about: completed ones of any action, and pending compactions."""
    return tuple(i for i in timeline.instants if i.completed or i.action == "compaction")


def digest(instants: Iterable[Instant]) -> str:
    """SHA-256 of `<requested time>_<action>_<STATE>` of the instants in order, without separators."""
    text = "".join(f"{i.requested_time}_{i.action}_{i.state.name}" for i in instants)
    return sha256(text.encode()).hexdigest()


def digests(timeline: Timeline) -> frozenset[str]:
    """The hashes that agree with a timeline.

    Hudi's server also counts pending log compactions, which its clients leave out; and it accepts a client that does
    not know a last `clean` yet.
    """
    known = counted(timeline)
    with_log_compactions = tuple(i for i in timeline.instants if i.completed or i.action in _PENDING)
    forms = [known, with_log_compactions]
    if known and known[-1].action == "clean":
        forms.append(known[:-1])
    return frozenset(map(digest, forms))


_PENDING = ("compaction", "logcompaction")


def agree(times: Sequence[str], accepted: frozenset[str], client: ClientState) -> bool:
    """Whether a client may be answered from a state. `times`: of its `counted` instants; `accepted`: its `digests`."""
    if not times and client.last == NO_INSTANT:
        return True
    return client.digest in accepted and (not times or client.last in times or client.last < times[0])


def may_stay_behind(old: Timeline, new: Timeline) -> bool:
    """Whether a client that knows only `old` may be answered from it though the table is at `new`.

    So if nothing since then removed a file that `old` has, nor opened a file slice into which the client must write:
    only delta commits and savepoints have come, and compactions that `old` knows have gone on.
    """
    known = {i.identity: i for i in counted(old)}
    now = {i.identity: i for i in counted(new)}
    for key, instant in now.items():
        before = known.get(key)
        if before is None and not (instant.completed and instant.action in ("deltacommit", "savepoint")):
            return False
    start = new.start
    return all(key in now or (i.completed and i.requested_time < start) for key, i in known.items())


def refusal(timeline: Timeline, client: ClientState) -> str:
    """Why a client is not answered, in the words of Hudi's server."""
    return (
        f"Last known instant from client was {client.last} but server has the following timeline "
        f"[{', '.join(map(_shown, counted(timeline)))}]"
    )


def _shown(instant: Instant) -> str:
    if instant.state is State.COMPLETED:
        return f"[{instant.requested_time}__{instant.completion_time or ''}__{instant.action}__COMPLETED]"
    return f"[==>{instant.requested_time}__{instant.action}__{instant.state.name}]"
