"""Commands run without pandas, also where it is installed.

pyarrow imports pandas when it first makes an array or a scalar of a Python value, to know the values of pandas. A
command has none, and the import takes 0.4 seconds of processor time: a tenth of a small compaction.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAME = "pandas"


def without_pandas() -> None:
    """Lets `import pandas` fail in this process from now on, as if it were not installed.

    For processes that belong to a command alone: never in one that runs a user's code.
    """
    sys.meta_path.insert(0, _Refuses())


class _Refuses(MetaPathFinder, Loader):
    """Has a specification: libraries that import pandas late (polars) ask for one, and do not expect an error there."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        return ModuleSpec(fullname, self) if fullname == _NAME else None

    def exec_module(self, module: ModuleType) -> None:
        """ModuleNotFoundError."""
        raise ModuleNotFoundError("pandas is not loaded in a command of phantombase", name=_NAME)
