"""Values of options that name a file or folder of this machine."""

from __future__ import annotations

from pathlib import Path

from typer import BadParameter


def local_path(text: str) -> Path:
    """The path; BadParameter: a URL, which as a path would be a folder called `s3:`."""
    if "://" in text:
        raise BadParameter(f"{text}: a file or folder of this machine is expected, not a URL")
    return Path(text)
