"""The class-data archive: made once, used when whole, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phantombase.compactor_daemon.jvm_archive import NO_ARCHIVE, ClassArchive, class_archive


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a JVM that is never run."""
    java = tmp_path / "jdk/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/phantombase/jvm"


def written(archive: ClassArchive) -> Path:
    """The file that the options have the JVM write."""
    return Path(archive.java_options.partition("-XX:ArchiveClassesAtExit=")[2].partition('"')[0])


def test_second_run_makes_the_archive_and_the_next_uses_it(cache: Path) -> None:
    assert class_archive() == NO_ARCHIVE, "a cache that is thrown away after each run would only cost"
    first = class_archive()
    new = written(first)
    assert new.parent == cache
    assert class_archive() == NO_ARCHIVE, "two JVMs would write one file"

    new.write_bytes(b"\xf0\x0b\xab\xa8 and classes")
    assert class_archive() == NO_ARCHIVE, "the first JVM still writes"

    with first:
        pass  # the JVM has ended: nobody holds the lock
    used = class_archive().java_options
    assert f"-XX:SharedArchiveFile={cache}/" in used
    assert "-Xshare:auto" in used
    assert class_archive().java_options == used


def test_archive_of_a_killed_jvm_is_made_again(cache: Path) -> None:
    class_archive()
    with (first := class_archive()):
        written(first).write_bytes(bytes(4096))  # the header comes last
    assert written(class_archive()) == written(first)


def test_another_java_has_another_archive(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class_archive()
    first = written(class_archive())
    os.utime(tmp_path / "jdk/bin/java", (0, 0))  # upgraded
    assert class_archive() == NO_ARCHIVE
    assert written(class_archive()) != first


def test_nothing_fails_without_cache_or_java(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache would be")
    assert class_archive() == NO_ARCHIVE
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert class_archive() == NO_ARCHIVE
