"""A section under a lock, as the steps in it see it: whether the lock is still held right now.

A lock may be lost inside a section: its time ends while the process is stopped, or a renewal is refused. No safety of a
compaction rests on that; the check is one more fence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import LockError


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """`purpose` and `lock` are for messages. `is_held`: see `Storage.hold`."""

    purpose: str
    lock: str
    is_held: Callable[[], bool]

    def check(self) -> None:
        """Called right before each step that the lock guards. LockError: the lock was lost, so the step must not be."""
        if not self.is_held():
            raise LockError(
                f"the lock was lost in the section to {self.purpose}",
                path=self.lock,
                expected="held until the section ends",
                found="not held any more: this process stopped for too long, or could not renew it",
                todo="Run again: what this section did is finished or taken back.",
            )


REGARDLESS = Section(purpose="take back what came too late", lock="none", is_held=lambda: True)
"""Of steps that must be made although the lock may be lost: what they take back is their own process's alone."""
