"""Delta commits from Spark or Arrow: keys, indexes, transactions; scheduling and compaction beside ingest."""

from writer_hooks.api import Writer, writer
from writer_hooks.write import Written

__all__ = ["Writer", "Written", "writer"]
