"""Type names of the numpy arrays that functions take and return (pure)."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Flags: TypeAlias = npt.NDArray[np.bool_]


Indices: TypeAlias = npt.NDArray[np.int64]


Hashes: TypeAlias = npt.NDArray[np.uint64]
