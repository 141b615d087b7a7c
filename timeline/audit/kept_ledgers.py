"""The ledgers that a compaction is audited against: in its commit, and in the audit log for the same execution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..errors import MalformedError
from ..format.commit_metadata import CommitMetadata, WriteStat
from ..format.instant import Instant
from ..table.table import Table
from .audit_log import AuditEntry, entries
from .group_ledger import LEDGER, GroupLedger, audit_path, decode_ledgers


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLedgers:
    """The ledgers of a compaction, and what is wrong with how they are stored. `named`: files that its commit names."""

    groups: tuple[GroupLedger, ...]
    problems: tuple[str, ...]
    named: frozenset[str]


def commits_with_ledgers(table: Table, only: str | None = None) -> list[Instant]:
    """Completed commits with a ledger, of one instant or of all."""
    return [i for i in table.files.completed_commits(only) if LEDGER in table.commit_metadata(i).extra_metadata]


def kept_ledgers(table: Table, instant: str) -> KeptLedgers:
    """The ledgers of the commit if there is one, else those of the last execution."""
    logged = entries(table.storage, instant)
    commits = {table.instant_path(c): table.commit_metadata(c) for c in commits_with_ledgers(table, instant)}
    problems = [e.trouble for e in logged if e.ledger is None]
    texts = {path: metadata.extra_metadata[LEDGER] for path, metadata in commits.items()}
    if len(commits) > 1:
        problems.append(f"{len(commits)} completed commits of one compaction: {', '.join(commits)}")
    if not commits:
        texts = {e.path: e.ledger for e in reversed(logged) if e.ledger is not None}
    else:
        same = _same_execution(texts, logged)
        if not same and not problems:
            path = audit_path(instant, len(logged) + 1)
            problems.append(f"the audit log has no entry {path}: the next run of compactor-daemon writes it")
        texts |= same
        if len(set(texts.values())) > 1:
            problems.append(f"different ledgers in {' and '.join(texts)}")
    groups = _first_readable(texts, problems)
    return KeptLedgers(
        groups=groups,
        problems=tuple(problems),
        named=frozenset(s.path for m in commits.values() for s in _stats(m) if s.path),
    )


def _stats(metadata: CommitMetadata) -> Iterator[WriteStat]:
    return (stat for stats in metadata.partition_to_write_stats.values() for stat in stats)


def _same_execution(commits: Mapping[str, str], logged: tuple[AuditEntry, ...]) -> dict[str, str]:
    """By path, the ledgers of those entries that belong to the same execution as the commits with these ledgers.

    Each attempt has its own file names: an entry that names other files belongs to an execution that was undone.
    """
    written = [_written(text) for text in commits.values()]
    found = {}
    for entry in logged:
        if entry.ledger is None:
            continue
        own = _written(entry.ledger)
        if entry.ledger in commits.values() or any(not own or not w or own & w for w in written):
            found[entry.path] = entry.ledger
    if any(text in commits.values() for text in found.values()):  # an entry without files may be of another execution
        found = {path: text for path, text in found.items() if text in commits.values() or _written(text)}
    return found


def _written(ledger: str) -> frozenset[str]:
    """Paths of the written files in a ledger; empty if the ledger cannot be read."""
    try:
        return frozenset(g.path(g.output) for g in decode_ledgers(ledger, "") if g.output is not None)
    except MalformedError:
        return frozenset()


def _first_readable(texts: Mapping[str, str], problems: list[str]) -> tuple[GroupLedger, ...]:
    for where, text in texts.items():
        try:
            return tuple(decode_ledgers(text, where))
        except MalformedError as error:
            problems.append(str(error))
    return ()
