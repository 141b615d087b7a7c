"""A case: one golden table with one file changed, a function of (seed, number) alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.support.golden_tables import golden_case, unzip_golden
from tests.world.fuzz.avro import mutate_container
from tests.world.fuzz.log import mutate_log
from tests.world.fuzz.numbers import Mutator, blind
from tests.world.fuzz.parquet import mutate_parquet
from tests.world.fuzz.text import mutate_json, mutate_name, mutate_properties

TABLES = (
    "v6_archived", "v6_event_time", "v6_log_compacted", "v6_parquet_log", "v6_pending", "v6_rolled_back", "v6_types",
    "v6_virtual_keys", "v8_event_time", "v8_log_compacted", "v8_two_pending", "v9_archived", "v9_multi_ordering",
    "v9_parquet_log", "v9_replaced", "v9_types", "v9_virtual_keys",
)  # fmt: skip

_WEIGHTS = {"log": 34, "base": 18, "plan": 14, "commit": 16, "history": 8, "properties": 5, "other": 3, "name": 2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is done to which table. `new_name` is None where only the bytes change."""

    table: str
    path: str
    what: str
    data: bytes
    new_name: str | None = None


def unpack(folder: Path) -> None:
    """All tables cases start from, each in `folder/<name>/table`, without Hadoop's checksum files."""
    for name in TABLES:
        unzip_golden(name, folder / name).rename(folder / name / "table")
        for crc in (folder / name / "table").rglob("*.crc"):
            crc.unlink()
        assert golden_case(name)


def make_case(pristine: Path, seed: int, number: int) -> Case:
    """The case of a seed and number."""
    rng = Random(f"{seed}/{number}")
    table = rng.choice(TABLES)
    root = pristine / table / "table"
    files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    kinds = {path: _kind(path) for path in files}
    present = [k for k in _WEIGHTS if k in kinds.values() or k == "name"]
    what = rng.choices(present, [_WEIGHTS[k] for k in present])[0]
    path = rng.choice([p for p in files if what in ("name", kinds[p])])
    data = (root / path).read_bytes()
    if what == "name":
        folder, name = os.path.split(path)
        return Case(table=table, path=path, what=what, data=data, new_name=os.path.join(folder, mutate_name(rng, name)))
    mutate = _mutator(path, data)
    return Case(table=table, path=path, what=what, data=mutate(rng, data))


def _kind(path: str) -> str:
    name = os.path.basename(path)
    if "/archived/" in path or "/history/" in path:
        return "history"
    if name.startswith("hoodie.properties"):
        return "properties"
    if ".compaction." in name or ".logcompaction." in name:
        return "plan"
    if path.startswith(".hoodie/"):
        return "commit" if name.endswith("commit") else "other"
    if ".log." in name:
        return "log"
    return "base" if name.endswith(".parquet") else "other"


def _mutator(path: str, data: bytes) -> Mutator:
    if data.startswith(b"PAR1"):
        return mutate_parquet
    if data.startswith(b"Obj\x01"):
        return mutate_container
    if data.startswith(b"#HUDI#"):
        return mutate_log
    if data.lstrip()[:1] in (b"{", b"["):
        return mutate_json
    return mutate_properties if "properties" in path or "partition_metadata" in path else blind


def build(pristine: Path, case: Case, into: Path) -> None:
    """The case's table in `into`: hard links to the pristine files, and the one that is changed."""
    root = pristine / case.table / "table"
    for folder, _, names in os.walk(root):
        here = into / os.path.relpath(folder, root)
        here.mkdir(parents=True, exist_ok=True)
        for name in names:
            os.link(os.path.join(folder, name), here / name)
    (into / case.path).unlink()
    target = into / (case.new_name or case.path)
    target.unlink(missing_ok=True)
    target.write_bytes(case.data)
