"""Programs of Debian's packages that tests need, installed where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

_INSTALL_MAX_S = 300.0


class NotInstalledError(Exception):
    """A program is missing and cannot be installed; the message says why."""


def cache() -> Path:
    """Where what tests fetch stays for the next run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phantombase"


def install(command: str, packages: tuple[str, ...]) -> str:
    """The path of a command, whose packages are installed where it is missing. NotInstalledError."""
    if (found := shutil.which(command)) is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotInstalledError(f"`{command}` is missing; only root can install it, and only with apt-get")
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "apt.lock", timeout=2 * _INSTALL_MAX_S):
            if (found := shutil.which(command)) is None:
                _apt_get("update")
                _apt_get("install", "-y", "--no-install-recommends", *packages)
    except Timeout as error:
        raise NotInstalledError(f"another test has installed packages for {2 * _INSTALL_MAX_S:g} s") from error
    if (found := found or shutil.which(command)) is None:
        raise NotInstalledError(f"{', '.join(packages)} did not bring `{command}`")
    return found


def unpacked(package: str, program: str) -> Path:
    """A program of a package that is fetched and not installed: no service of it is started. NotInstalledError."""
    folder = cache() / "debian" / package
    if not (folder / program).exists():
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise NotInstalledError(f"`{package}` is fetched by root, and with apt-get")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(cache() / "apt.lock"), tempfile.TemporaryDirectory(dir=folder.parent) as fetched:
            _apt_get("update")
            _apt_get("download", package, folder=fetched)
            (archive,) = Path(fetched).glob("*.deb")
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run(["dpkg-deb", "-x", archive, f"{fetched}/whole"], check=True, timeout=_INSTALL_MAX_S)
            Path(fetched, "whole").rename(folder)
    return folder / program


def _apt_get(*arguments: str, folder: str | None = None) -> None:
    step = ["apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(step, env=environment, capture_output=True, text=True, timeout=_INSTALL_MAX_S, cwd=folder)
    except subprocess.TimeoutExpired as error:
        raise NotInstalledError(f"`{' '.join(step)}` took more than {_INSTALL_MAX_S:g} s") from error
    if done.returncode != 0:
        raise NotInstalledError(f"`{' '.join(step)}` failed: {(done.stdout + done.stderr)[-1000:]}")
