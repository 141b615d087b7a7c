"""A table on S3 that real Hudi and we work on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from tests.hudi.cases.shared_table import SharedAnywhere
from tests.hudi.judge.table_files import TablePath, copy_on_s3


@dataclass(frozen=True, kw_only=True)
class S3Table(SharedAnywhere):
    """At an `s3a://` URL."""

    url: str

    @property
    def place(self) -> TablePath:
        return self.url

    def copy(self) -> Self:
        url = f"{self.url}-copy"
        copy_on_s3(self.url, url)
        return replace(self, url=url)
