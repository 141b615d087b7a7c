"""Names of data files: parse and print are inverses; what is skipped, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.write_token import is_of_phantombase

file_ids = st.from_regex(r"[A-Za-z0-9-]{1,36}", fullmatch=True)
digits = st.from_regex(r"[0-9]{1,20}", fullmatch=True)
tokens = st.from_regex(r"(0|[1-9][0-9]{0,3})-[0-9]{1,4}-[0-9]{1,4}", fullmatch=True)
base_names = st.builds(
    BaseFileName,
    file_id=file_ids,
    token=tokens | st.just(""),
    instant=digits,
    extension=st.sampled_from([".parquet", ".orc"]),
)
log_names = st.builds(
    LogFileName,
    file_id=file_ids,
    instant=digits,
    version=st.integers(0, 10**6),
    token=st.none() | tokens,
    suffix=st.sampled_from(["", ".cdc"]),
)


@settings(deadline=None)
@given(base_names)
def test_base_names_print_and_parse(name: BaseFileName) -> None:
    """A printed base file name parses to itself; one that is not Parquet is no data file of ours."""
    assert BaseFileName.parse(str(name)) == name
    assert parse_data_file(str(name)) == (name if name.extension == ".parquet" else None)


@settings(deadline=None)
@given(log_names)
def test_log_names_print_and_parse(name: LogFileName) -> None:
    """A printed log file name parses to itself, by either parser."""
    assert LogFileName.parse(str(name)) == name
    assert parse_data_file(str(name)) == name


@settings(deadline=None)
@given(
    st.from_regex(r"[._a-c0-9٣/-]{0,3}(log|_|\.)[._a-c0-9٣-]{0,6}(\.log\.[0-9]{1,2}|\.parquet|[.]cdc)?", fullmatch=True)
)
def test_what_parses_prints_back(text: str) -> None:
    """Any text either is refused or prints back as it was."""
    for kind in (BaseFileName, LogFileName):
        try:
            name = kind.parse(text)
        except MalformedError:
            continue
        assert str(name) == text


@pytest.mark.parametrize("text", [".f_10.log.01_0-0-0", ".f_10.log.٣"])
def test_versions_are_plain_numbers(text: str) -> None:
    """Leading zeros and digits of other scripts would print back as another file."""
    with pytest.raises(MalformedError):
        LogFileName.parse(text)


def test_names_of_real_files() -> None:
    """The examples of hudi-format.md section 3."""
    base = BaseFileName.parse("7181ef50-099a-41e8-8f8c-d1ce26675b73-0_0-14-37_20261121084011782.parquet")
    assert (base.file_id, base.token, base.instant) == (
        "7181ef50-099a-41e8-8f8c-d1ce26675b73-0",
        "0-14-37",
        "20261121084011782",
    )
    log = LogFileName.parse(".7181ef50-099a-41e8-8f8c-d1ce26675b73-0_20261121084011782.log.3_0-81-192")
    assert (log.instant, log.version, log.token, log.is_cdc) == ("20261121084011782", 3, "0-81-192", False)
    assert LogFileName.parse(".f_10.log.1").token is None
    assert LogFileName.parse(".f_10.log.1_0-0-0.cdc").is_cdc


def test_log_order() -> None:
    """Instant as text, version as a number, token as text, suffix; no token comes first."""
    ordered = [
        ".f_10.log.1",
        ".f_10.log.1_10-0-0",
        ".f_10.log.1_10-0-0.cdc",
        ".f_10.log.1_9-0-0",
        ".f_10.log.2_0-0-0",
        ".f_10.log.10_0-0-0",
        ".f_11.log.1_0-0-0",
    ]
    names = [LogFileName.parse(name) for name in reversed(ordered)]
    assert [str(name) for name in sorted(names, key=lambda n: n.sort_key)] == ordered


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f.parquet",
        "f_0.parquet",
        "f_0-0-0_x.parquet",
        "f_0_10",
        "a_b_c_10.parquet",
        "d/f_0_10.parquet",
        ".f_0_10.parquet",
    ],
)
def test_malformed_base_names(text: str) -> None:
    """Refused with the name in the error."""
    with pytest.raises(MalformedError) as failure:
        BaseFileName.parse(text)
    assert failure.value.found == repr(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f_10.log.1",
        ".f.log.1",
        ".f_10.log.",
        ".f_10.log.1_0-0",
        ".f_x.log.1",
        ".f_10.log.1_0-0-0-cdc",
        "d/.f_10.log.1",
    ],
)
def test_malformed_log_names(text: str) -> None:
    """Refused with the name in the error."""
    with pytest.raises(MalformedError) as failure:
        LogFileName.parse(text)
    assert failure.value.found == repr(text)


@pytest.mark.parametrize(
    "text",
    [
        ".f_10.log.1.crc",
        "f_0-0-0_10.parquet.crc",
        ".hoodie_partition_metadata",
        ".hoodie_partition_metadata.parquet",
        "_SUCCESS",
        ".temp",
    ],
)
def test_what_is_no_data(text: str) -> None:
    """Side files, partition metadata, markers, hidden files."""
    assert parse_data_file(text) is None


# Which files are those of phantombase.


@pytest.mark.parametrize("token", ["3-1-990000000", "0-980000000-123456789", "12-980000000-990000000"])
def test_tokens_of_phantombase(token: str) -> None:
    assert is_of_phantombase(token)


@pytest.mark.parametrize("token", [None, "", "0-12-34", "980000000-1-2", "0-990000000-1", "0-1-980000000"])
def test_tokens_of_others(token: str | None) -> None:
    assert not is_of_phantombase(token)
