"""The walls of the house: imports go one way, and pure files do no I/O."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORDER = ("timeline", "compactor_daemon", "writer_hooks")
"""Each package may import those before it, and itself."""

PURE = (
    "timeline/active.py", "timeline/avro_schema.py", "timeline/bloom.py", "timeline/bounds.py",
    "timeline/candidate.py", "timeline/clock_evidence.py", "timeline/clock_options.py",
    "timeline/commit_metadata.py", "timeline/conform.py", "timeline/errors.py",
    "timeline/file_name.py", "timeline/fold.py", "timeline/instant.py", "timeline/key_lookup.py", "timeline/layout.py",
    "timeline/ledger.py", "timeline/log_pieces.py", "timeline/log_plan.py", "timeline/log_scan.py",
    "timeline/merge.py", "timeline/metadata_table/column_range.py", "timeline/metadata_table/combine.py",
    "timeline/metadata_table/decode.py", "timeline/metadata_table/files_records.py",
    "timeline/metadata_table/hfile.py", "timeline/metadata_table/hfile_write.py",
    "timeline/metadata_table/indexed_columns.py", "timeline/metadata_table/keys.py",
    "timeline/metadata_table/partitions.py", "timeline/metadata_table/stats_records.py",
    "timeline/metadata_table/value_type.py", "timeline/on_demand.py", "timeline/ordering.py", "timeline/picker.py",
    "timeline/plan.py", "timeline/plan_draft.py", "timeline/plan_notes.py", "timeline/planner.py",
    "timeline/record_key.py", "timeline/record_positions.py", "timeline/report.py", "timeline/schedule_options.py",
    "timeline/slice_io.py", "timeline/strategies.py", "timeline/table_support.py", "timeline/triggers.py",
    "timeline/urgency.py", "timeline/view.py", "compactor_daemon/commit_record.py", "compactor_daemon/dispatch.py",
    "compactor_daemon/hudi_conf.py", "compactor_daemon/status.py", "compactor_daemon/table_state.py",
    "compactor_daemon/work_note.py", "writer_hooks/bucket.py", "writer_hooks/column_types.py",
    "writer_hooks/incoming.py", "writer_hooks/key_generator.py", "writer_hooks/new_table.py",
    "writer_hooks/partition_times.py", "writer_hooks/table_conf.py", "writer_hooks/table_schema.py",
)  # fmt: skip

IMPURE = {
    "os", "time", "random", "socket", "subprocess", "threading", "pyspark", "kazoo", "filelock", "shutil", "tempfile",
    "timeline.local_storage", "timeline.file_lock", "timeline.open_storage", "timeline.table",
    "timeline.instant_files", "timeline.view_loader", "timeline.fact_loader", "timeline.timeline_loader",
    "timeline.schema_finder", "timeline.read", "timeline.lock", "timeline.schedule", "timeline.history",
    "timeline.console",
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """Modules a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("package", ORDER)
def test_imports_go_one_way(package: str) -> None:
    """writer_hooks -> compactor_daemon -> timeline; nothing points back."""
    above = ORDER[ORDER.index(package) + 1 :]
    for path in (ROOT / package).rglob("*.py"):
        wrong = {m for m in imports(path) if m.split(".")[0] in (*above, "tests", "bench")}
        assert not wrong, f"{path.name} imports {wrong}"


@pytest.mark.parametrize("name", PURE)
def test_pure_files_do_no_io(name: str) -> None:
    """No storage but its contract, no clock, no process, no network."""
    wrong = {m for m in imports(ROOT / name) if m in IMPURE or m.split(".")[0] in IMPURE}
    assert not wrong, f"{name} imports {wrong}"


@pytest.mark.parametrize("package", ORDER)
def test_only_storage_knows_the_local_file_system(package: str) -> None:
    """Else a table elsewhere gets a lock that excludes nobody, or bytes that are not durable."""
    own = {"timeline.local_storage", "timeline.file_lock", "timeline.open_storage"}
    for path in (ROOT / package).rglob("*.py"):
        if ".".join(path.relative_to(ROOT).with_suffix("").parts) not in own:
            text = path.read_text()
            found = {name for name in ("LocalStorage", "filelock", "fsync") if name in text}
            assert not found, f"{path.name} names {found}"


def test_no_file_imports_in_a_circle() -> None:
    """Any order of imports works."""
    graph = {
        ".".join(p.relative_to(ROOT).with_suffix("").parts): {m for m in imports(p) if m.split(".")[0] in ORDER}
        for package in ORDER
        for p in (ROOT / package).rglob("*.py")
    }
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above, module))
        if module not in done:
            for below in graph.get(module, set()):
                visit(below, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())
