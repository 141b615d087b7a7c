"""Sections under a lock, for locks of tests."""

from __future__ import annotations

from phantombase.timeline.locks.section import Section


def kept(purpose: str) -> Section:
    """Under a lock that is never lost."""
    return Section(purpose=purpose, lock="a lock of a test", is_held=lambda: True)
