"""The file that marks a folder as a partition of a table."""

from __future__ import annotations

import javaproperties


def partition_metadata(instant: str, depth: int) -> bytes:
    """The content of a partition's `.hoodie_partition_metadata`; Hudi lists only folders that have this file.

    `instant`: the commit that makes the partition; `depth`: levels of its path, 0 for the table itself. The file is
    written once, before the first data file. It contains no time: equal arguments give equal bytes.
    """
    values = {"commitTime": instant, "partitionDepth": str(depth)}
    text: str = javaproperties.dumps(values, timestamp=False, sort_keys=True)
    return b"#partition metadata\n" + text.encode()
