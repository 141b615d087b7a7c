"""Rows by target, as an engine counts them."""

from __future__ import annotations

from phantombase.writer_hooks.engine.engine import summed


def test_rows_of_the_pieces_of_a_target_add_up() -> None:
    assert summed(["a", "a", "b", "a"], ["x", "x", "x", "y"], [1, 2, 4, 8]) == {
        ("a", "x"): 3,
        ("b", "x"): 4,
        ("a", "y"): 8,
    }
    assert summed([], [], []) == {}
