"""The tables that real Hudi cleaned: the same files stay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phantombase.timeline.cleaning.options import Policy
from phantombase.timeline.read.table_read import read_table
from tests.support.cleaned_tables import clean, data_files, unzip
from tests.support.compaction_steps import open_table
from tests.support.compare_rows import assert_same_rows


@pytest.mark.parametrize(
    ("before", "after", "policy"),
    [
        ("v6_0.15.0_clean_commits.before", "v6_0.15.0_clean_commits.after1", Policy.COMMITS),
        ("v6_0.15.0_clean_commits.before2", "v6_0.15.0_clean_commits.after2", Policy.COMMITS),
        ("v6_0.15.0_clean_savepoint.before", "v6_0.15.0_clean_savepoint.after", Policy.COMMITS),
        ("v6_0.15.0_clean_versions.before", "v6_0.15.0_clean_versions.after", Policy.VERSIONS),
        ("v6_0.15.0_replaced.before", "v6_0.15.0_replaced.after", Policy.COMMITS),
        ("v9_1.2.0_t.before", "v9_1.2.0_t.cleaned", Policy.COMMITS),
    ],
)
def test_the_same_files_stay(before: str, after: str, policy: Policy, tmp_path: Path) -> None:
    path, expected = unzip(before, tmp_path), unzip(after, tmp_path)
    rows = read_table(open_table(path))
    clean(path, policy)
    assert data_files(path) == data_files(expected)
    assert_same_rows(read_table(open_table(path)), rows)
    assert clean(path, policy).instant is None


def test_clusterings(tmp_path: Path) -> None:
    """What Hudi clustered goes with the same clean: its state before is put together of what it left, and of the input
    files, which the table before the two later writes has."""
    path, before = unzip("v6_0.15.0_cluster.cleaned", tmp_path), unzip("v6_0.15.0_cluster.after", tmp_path)
    stay, rows = data_files(path), read_table(open_table(path))
    for name in data_files(before) - stay:
        shutil.copy2(before / name, path / name)
    for part in (path / ".hoodie").glob("*.clean*"):
        part.unlink()
    clean(path)
    assert data_files(path) == stay
    assert_same_rows(read_table(open_table(path)), rows)


def test_what_a_pending_clustering_needs_stays(tmp_path: Path) -> None:
    """As Hudi, which cleaned this table beside it."""
    path = unzip("v6_0.15.0_pending_clustering.after", tmp_path)
    stay = data_files(path)
    for part in (path / ".hoodie").glob("*.clean*"):
        part.unlink()
    clean(path)
    assert data_files(path) == stay
