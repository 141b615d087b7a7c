"""What a compaction or clustering records about its rows, the ledger of every file group.

A ledger is stored twice: in the commit's extraMetadata under `LEDGER`, of a clustering under `CLUSTERED`, and in the
audit log, which remains when Hudi archives the commit. The audit log has an entry for each completed execution; entries
are never changed or deleted.

    .hoodie/.phantombase/audit/<C>.json      the first execution
    .hoodie/.phantombase/audit/<C>-2.json    the second: the first was rolled back, and C was executed again
    ...

An entry is JSON: instant, attempt, completed (path of the commit), ledger (text, as in the commit)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from ..errors import MalformedError
from ..format.commit_metadata import LEDGER, CommitMetadata
from ..format.instant import Instant
from ..format.ledger import CLUSTERED, GroupLedger, decode_ledgers
from ..record_fields import Fields
from ..storage.contract import Storage
from ..storage.folders import RECORDS
from ..table.table import Table

AUDIT_LOG = f"{RECORDS}/audit"


def audit_path(instant: str, execution: int = 1) -> str:
    """Path of an instant's entry in the audit log. `execution`: 1 for the first completed one, 2 for the second."""
    return f"{AUDIT_LOG}/{instant}{'' if execution == 1 else f'-{execution}'}.json"


def logged_instants(storage: Storage) -> tuple[str, ...]:
    if storage.find(AUDIT_LOG) is None:
        return ()
    names = (e.name for e in storage.list(AUDIT_LOG))
    return tuple(sorted({n.removesuffix(".json").partition("-")[0] for n in names if n.endswith(".json")}))


_TODO = "The compaction's commit holds the same ledger until it is archived. Only this entry's proof is lost."


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An entry. `ledger`: None if it cannot be read; `trouble`: the reason. `of_clustering`: by its completed file."""

    path: str
    ledger: str | None = None
    trouble: str = ""
    of_clustering: bool = False


def add_entry(storage: Storage, instant: str, attempt: int, completed: str, ledger: str) -> None:
    """Adds an entry after those of the instant, unless one of them has this ledger. Any process may repeat it."""
    body = {"instant": instant, "attempt": attempt, "completed": completed, "ledger": ledger}
    record = json.dumps(body, sort_keys=True).encode()
    for execution in count(1):  # ends at the first name that does not exist
        path = audit_path(instant, execution)
        if storage.put_if_absent(path, record) or _read(storage, path).ledger == ledger:
            return


def entries(storage: Storage, instant: str) -> tuple[AuditEntry, ...]:
    """The entries of an instant, first execution first."""
    return tuple(_entries(storage, instant))


def _entries(storage: Storage, instant: str) -> Iterator[AuditEntry]:
    for execution in count(1):
        path = audit_path(instant, execution)
        if storage.find(path) is None:
            return
        yield _read(storage, path)


def _read(storage: Storage, path: str) -> AuditEntry:
    try:
        fields = Fields.parse(storage.read(path), path, "unreadable entry of the audit log", _TODO)
        of_clustering = fields.text("completed").endswith(".replacecommit")
        return AuditEntry(path=path, ledger=fields.text("ledger"), of_clustering=of_clustering)
    except MalformedError as error:
        return AuditEntry(path=path, trouble=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLedgers:
    """The ledgers of an instant, and problems of their storage. `named`: files that its commit names."""

    groups: tuple[GroupLedger, ...]
    problems: tuple[str, ...]
    named: frozenset[str]


def ledger_of(metadata: CommitMetadata) -> str | None:
    """The ledgers in a commit, as stored."""
    return metadata.extra_metadata.get(LEDGER, metadata.extra_metadata.get(CLUSTERED))


def commits_with_ledgers(table: Table, only: str | None = None) -> list[Instant]:
    """The completed compactions; with `only` also that clustering."""
    return [i for i in table.files.completed_commits(only) if ledger_of(table.commit_metadata(i)) is not None]


def logged_clusterings(storage: Storage, unless: Collection[str] = ()) -> frozenset[str]:
    """The clusterings among the instants with an entry. `unless`: those that are known not to be ones."""
    instants = (one for one in logged_instants(storage) if one not in unless)
    return frozenset(one for one in instants if _read(storage, audit_path(one)).of_clustering)


def kept_ledgers(table: Table, instant: str) -> KeptLedgers:
    """The ledgers of the commit if there is one, else those of the last execution."""
    logged = entries(table.storage, instant)
    commits = {table.instant_path(c): table.commit_metadata(c) for c in commits_with_ledgers(table, instant)}
    problems = [e.trouble for e in logged if e.ledger is None]
    texts = {path: ledger_of(metadata) or "" for path, metadata in commits.items()}
    if len(commits) > 1:
        problems.append(f"{len(commits)} completed commits of one instant: {', '.join(commits)}")
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
        named=frozenset[str]().union(*(m.named_files for m in commits.values())),
    )


def _same_execution(commits: Mapping[str, str], logged: tuple[AuditEntry, ...]) -> dict[str, str]:
    """By path, the ledgers of the entries that belong to the same execution as the commits with these ledgers. Each
    attempt has its own file names: an entry that names other files belongs to an execution that was undone."""
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
        return frozenset(g.path(name) for g in decode_ledgers(ledger, "") for name, _ in g.outputs)
    except MalformedError:
        return frozenset()


def _first_readable(texts: Mapping[str, str], problems: list[str]) -> tuple[GroupLedger, ...]:
    for where, text in texts.items():
        try:
            return tuple(decode_ledgers(text, where))
        except MalformedError as error:
            problems.append(str(error))
    return ()
