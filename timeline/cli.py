"""The `timeline` command: looks at a table and reads it; never changes it.

Each command computes plain data (`timeline.report`), then renders it. Whatever a writer moves away between two
looks is looked at again from the start.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import RenderableType
from rich.text import Text

from timeline.console import (
    Column,
    Progress,
    configure_logging,
    emit,
    facts_grid,
    human_bytes,
    human_duration,
    plural,
    progress,
    rows_table,
    run,
)
from timeline.errors import MissingFileError, PhantombaseError, StorageError, UsageError
from timeline.instant import Instant, parse_as_of
from timeline.layout import HOODIE
from timeline.plan import CompactionPlan, decode_plan
from timeline.read import Query, ReadOptions, Scan, plan_read
from timeline.report import (
    Row,
    instant_rows,
    moment,
    pending_rows,
    plan_report,
    planned_paths,
    slices_report,
    table_facts,
)
from timeline.storage import close_output
from timeline.table import Table, consistent
