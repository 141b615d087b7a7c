"""Azure, Google Cloud Storage and MinIO are held to what S3 is held to.

GCS by a stand-in only; with all tests Azure by Azurite, S3 by VersityGW, too, and MinIO where `$PHANTOMBASE_MINIO`
names its binary.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

import obstore
import pytest

import tests.timeline.storage.test_object_store as on_s3
from phantombase.timeline.errors import StorageError, UnsupportedError
from phantombase.timeline.storage import object_store
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.probe import probe
from phantombase.timeline.storage.storage_options import StorageOptions
from tests.support.servers.azure_server import AzureServer
from tests.support.servers.gcs_server import GcsServer
from tests.support.servers.real_s3_server import KMS_KEY, RealS3Server
from tests.support.storage_contract import no_pauses as no_pauses

_SHARED = (
    on_s3.test_a_folder_without_objects_is_none,
    on_s3.test_nothing_is_seen_of_an_output_before_its_end,
    on_s3.test_a_large_object_is_read_by_ranges,
    on_s3.test_one_holds_the_lock,
    on_s3.test_a_held_lock_is_busy,
    on_s3.test_the_lock_of_a_dead_holder_is_free_at_last,
)
"""What no server of S3 is needed for."""


class OnAnotherStore(on_s3.TestObjectStorage):
    """The contract, and the promises of all object stores."""

    for _test in _SHARED:
        locals()[_test.__name__] = staticmethod(_test)

    def test_64_race_and_one_wins(self, storage: ObjectStorage) -> None:
        """In every round: puts, and copies."""
        storage.put_if_absent("staged", b"bytes")
        with ThreadPoolExecutor(64) as pool:
            for number in range(5):
                put = list(pool.map(lambda i, n=number: storage.put_if_absent(f"put/{n}", bytes([i])), range(64)))
                placed = list(pool.map(lambda _, n=number: storage.place("staged", f"placed/{n}"), range(64)))
                assert (put.count(True), placed.count(True)) == (1, 1)
                assert storage.read(f"put/{number}") == bytes([put.index(True)])

    def test_a_folder_is_removed_while_its_files_are(self, storage: ObjectStorage) -> None:
        """An object that another process has removed does not keep the others."""
        for number in range(5):
            storage.put_if_absent(f"d/{number}", b"x")
        listed = obstore.list
        with pytest.MonkeyPatch.context() as patch:

            def removed_meanwhile(*args: object, **more: object) -> object:
                found = list(listed(*args, **more))  # type: ignore[call-overload]
                storage.delete("d/1")
                return found

            patch.setattr(obstore, "list", removed_meanwhile)
            storage.delete_folder("d")
        assert storage.find("d") is None


@pytest.mark.deep
class TestAzure(OnAnotherStore):
    """Azurite."""

    test_a_name_is_a_folder_or_a_file = staticmethod(on_s3.test_a_name_is_a_folder_or_a_file)

    @pytest.fixture
    def url(self, azure: AzureServer) -> str:
        return azure.url(azure.new_bucket(), "tables/a b+c%é")

    def test_a_folder_of_hadoop_is_no_file(self, storage: ObjectStorage, azure: AzureServer) -> None:
        """Hadoop marks an empty folder by an empty blob of that name."""
        bucket = storage.clients.bucket
        azure.put(f"{bucket}/{storage.prefix}", b"", hdi_isfolder="true")
        azure.put(f"{bucket}/{storage.prefix}/d", b"", hdi_isfolder="true")
        for folder in ("", "d"):
            found = storage.find(folder)
            assert found is not None
            assert found.is_folder
        assert storage.list("d") == []
        storage.put_if_absent("file", b"")
        found = storage.find("file")
        assert found is not None
        assert not found.is_folder

    @pytest.mark.parametrize("ends", [True, False])
    def test_a_copy_that_goes_on_after_its_answer_is_waited_for(
        self, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, ends: bool
    ) -> None:
        """A pending copy shows an empty blob."""
        storage.put_if_absent("staged", b"bytes")

        def begins(store: object, source: str, target: str, *, overwrite: bool) -> None:
            assert not overwrite
            storage.put_with_id("placed", b"")

        def passes(_: float) -> None:
            if ends:
                storage.overwrite("placed", b"bytes")

        monkeypatch.setattr(obstore, "copy", begins)
        monkeypatch.setattr(time, "sleep", passes)
        monkeypatch.setattr(object_store, "_LATER_S", (0.0,))
        if ends:
            assert storage.place("staged", "placed")
            assert storage.read("placed") == b"bytes"
        else:
            with pytest.raises(StorageError, match="does not end"):
                storage.place("staged", "placed")


@pytest.mark.deep
class TestVersity(OnAnotherStore):
    """VersityGW, which keeps objects as files: an object `x` or objects below `x/`, not both."""

    @pytest.fixture
    def url(self, versity: RealS3Server) -> str:
        return f"s3://{versity.new_bucket()}/tables/a b+c%é"


@pytest.mark.deep
@pytest.mark.minio
class TestMinio(OnAnotherStore):
    """MinIO. It lists an object `x` and hides `x/`: no name of Hudi's is both."""

    @pytest.fixture
    def url(self, minio: RealS3Server) -> str:
        return f"s3://{minio.new_bucket()}/tables/a b+c%é"

    @pytest.mark.parametrize("more", [{}, {"sse_kms_key_id": KMS_KEY}], ids=["of S3", "of KMS"])
    def test_what_is_placed_is_encrypted(self, url: str, more: dict[str, str], minio: RealS3Server) -> None:
        """Also a large upload, and a copy within the store."""
        options = {"server_side_encryption": "aws:kms" if more else "AES256", **more}
        storage = ObjectStorage(url, StorageOptions.of(options))
        storage.put_if_absent("small", b"x")
        file = storage.open_output("large")
        for _ in range(4):
            file.write(b"x" * (5 << 20))
        storage.close_output(file)
        storage.place("large", "placed")
        assert storage.read("placed") == b"x" * (20 << 20)
        for name in ("small", "large", "placed"):
            found = minio.client.head_object(Bucket=storage.clients.bucket, Key=storage.key(name))
            assert found["ServerSideEncryption"] == options["server_side_encryption"]


class TestGcs(OnAnotherStore):
    """A stand-in: not proved by a judge."""

    @pytest.fixture
    def url(self, gcs: GcsServer) -> str:
        return "gs://bucket/tables/a b+c%é"


def test_conditions_of_gcs_are_generations(gcs: GcsServer) -> None:
    """What is sent is what Google's pages ask for."""
    storage = ObjectStorage("gs://bucket/tables/a b")
    probe(storage)
    gcs.asked.clear()
    storage.put_if_absent("x", b"data")
    storage.place("x", "y")
    (_, _, put), (_, placed, copy) = (asked for asked in gcs.asked if asked[0] == "PUT")
    assert put["x-goog-if-generation-match"] == copy["x-goog-if-generation-match"] == "0"
    assert "x-goog-meta-putid" in put
    assert placed.endswith("/y")
    assert unquote(copy["x-goog-copy-source"]).startswith("bucket/tables/")


def test_a_gcs_that_ignores_conditions_is_refused(gcs: GcsServer) -> None:
    gcs.ignored = frozenset(("x-goog-if-generation-match",))
    with pytest.raises(UnsupportedError, match=r"put-if-absent.*generation-match"):
        ObjectStorage("gs://another/t").put_if_absent("x", b"")


def test_one_place_has_one_name(azure: AzureServer, gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However its URL is written."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    urls = (
        "abfs://c@acc.dfs.core.windows.net/a/t",
        "abfss://c@acc.dfs.core.windows.net/a/t/",
        "wasbs://c@acc.blob.core.windows.net/a/t",
        "abfs://c/a/t",
        "az://c/a/t",
    )
    assert {ObjectStorage(url).location for url in urls} == {"abfs://c@acc/a/t"}
    assert ObjectStorage("gs://b/a/t").location == "gs://b/a/t"
