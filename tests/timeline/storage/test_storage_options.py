"""Options of object stores have one meaning under all their names, come from one source together, and stay secret."""

from __future__ import annotations

import pickle

import pytest

from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.storage.object_url import AZURE, ObjectUrl, hadoop_name, names_at
from phantombase.timeline.storage.storage_options import (
    SETTINGS,
    Settings,
    StorageOptions,
    environment_of,
    parse_pairs,
    without_secrets,
)
from tests.support.selection import for_each

BUCKET = ObjectUrl.parse("s3://lake/t")
CONTAINER = ObjectUrl.parse("abfs://c@acc.dfs.core.windows.net/t")
GOOGLE = ObjectUrl.parse("gs://lake/t")


def at(url: ObjectUrl, given: dict[str, str], hadoop: dict[str, str] | None = None) -> dict[str, str]:
    """The options of a place."""
    return dict(StorageOptions.of(given).over(hadoop or {}).at(url).values)


@for_each(["region", "AWS_REGION", "aws_region", "AWS_DEFAULT_REGION", "fs.s3a.endpoint.region"])
def test_all_names_of_an_option_mean_the_same(name: str) -> None:
    assert at(BUCKET, {name: "eu-west-1"}) == {"region": "eu-west-1"}


@for_each(
    [
        ("endpont", "endpoint"),
        ("fs.s3a.secrt.key", "fs.s3a.secret.key"),
        ("AWS_SECRET_ACCES_KEY", "AWS_SECRET_ACCESS_KEY"),
        ("fs.azure.account.keys", "fs.azure.account.key"),
    ]
)
def test_an_unknown_name_is_refused_without_its_value(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"Did you mean {meant}"):
        StorageOptions.of({name: "hidden"})
    with pytest.raises(UsageError, match=f"Did you mean {meant}") as refused:
        parse_pairs([f"{name}=hidden"])
    assert "hidden" not in str(refused.value)


def test_a_pair_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="NAME=VALUE") as refused:
        parse_pairs(["secret_access_key:hidden"])
    assert "hidden" not in str(refused.value)
    with pytest.raises(UsageError, match="twice"):
        parse_pairs(["region=a", "region=b"])
    assert parse_pairs(["endpoint=http://h?a=b"]).given == (("endpoint", "http://h?a=b"),)


def test_two_names_of_one_option_must_agree() -> None:
    assert at(BUCKET, {"region": "a", "AWS_REGION": "a"}) == {"region": "a"}
    for other in ("AWS_REGION", "fs.s3a.endpoint.region"):
        with pytest.raises(UsageError, match=r"a name twice.*region"):
            at(BUCKET, {"region": "a", other: "b"})


def test_options_of_another_kind_of_store_mean_nothing_here() -> None:
    """A daemon may serve tables of several stores; a name that several have means all of them."""
    given = {"AZURE_STORAGE_ACCOUNT_KEY": "k", "fs.s3a.endpoint.region": "r", "proxy_excludes": "h"}
    assert at(BUCKET, given) == {"region": "r", "proxy_excludes": "h"}
    assert at(CONTAINER, given) == {"account_key": "k", "account_name": "acc", "proxy_excludes": "h"}
    assert at(GOOGLE, given) == {"proxy_excludes": "h"}


# --- Hadoop's


@for_each(
    [
        ({"endpoint": "minio:9000"}, {"endpoint": "https://minio:9000"}),
        (
            {"endpoint": "minio:9000", "connection.ssl.enabled": "false"},
            {"endpoint": "http://minio:9000", "allow_http": "true"},
        ),
        ({"endpoint": "http://minio:9000"}, {"endpoint": "http://minio:9000", "allow_http": "true"}),
        ({"endpoint": "s3.eu-west-1.amazonaws.com"}, {"region": "eu-west-1"}),
        ({"endpoint": "s3.amazonaws.com", "endpoint.region": "us-west-2"}, {"region": "us-west-2"}),
        ({"path.style.access": "true"}, {"virtual_hosted_style_request": "false"}),
        ({"path.style.access": "false"}, {"virtual_hosted_style_request": "true"}),
        ({"encryption.algorithm": "AES256"}, {"server_side_encryption": "AES256"}),
        (
            {"encryption.algorithm": "SSE-KMS", "encryption.key": "arn:k"},
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "arn:k"},
        ),
        ({"requester.pays.enabled": "true"}, {"request_payer": "true"}),
        (
            {"aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"},
            {"skip_signature": "true"},
        ),
        ({"proxy.host": "p", "proxy.port": "3128"}, {"proxy_url": "http://p:3128"}),
        ({"connection.maximum": "200"}, {}),
    ]
)
def test_names_of_s3a(hadoop: dict[str, str], expected: dict[str, str]) -> None:
    assert at(BUCKET, {}, {f"fs.s3a.{name}": value for name, value in hadoop.items()}) == expected


def test_a_name_with_the_bucket_or_the_account_wins() -> None:
    of_bucket = {"fs.s3a.endpoint": "all", "fs.s3a.bucket.lake.endpoint": "own", "fs.s3a.bucket.other.endpoint": "no"}
    assert at(BUCKET, {}, of_bucket) == {"endpoint": "https://own"}
    of_account = {
        "fs.azure.account.key": "all",
        "fs.azure.account.key.acc.dfs.core.windows.net": "own",
        "fs.azure.account.key.other.dfs.core.windows.net": "no",
    }
    assert at(CONTAINER, {}, of_account)["account_key"] == "own"
    assert all(hadoop_name(name) for name in (*of_bucket, *of_account))
    assert {"fs.s3a.bucket.lake.endpoint", "fs.s3a.access.key"} <= set(names_at("s3a://lake/t"))
    assert names_at("/data/t") == []


def test_names_of_azure_and_google() -> None:
    login = "https://login.microsoftonline.com/tenant-1/oauth2/token"
    assert at(CONTAINER, {}, {"fs.azure.account.oauth2.client.endpoint": login}) == {
        "account_name": "acc",
        "tenant_id": "tenant-1",
        "authority_host": "https://login.microsoftonline.com",
    }
    assert at(GOOGLE, {"fs.gs.auth.service.account.json.keyfile": "/k.json"}) == {"service_account": "/k.json"}
    assert at(GOOGLE, {}, {"fs.gs.auth.type": "UNAUTHENTICATED"}) == {"skip_signature": "true"}


def test_credentials_come_from_one_source() -> None:
    """The session token of a Hadoop configuration is not one of the given keys; its region is still of use."""
    hadoop = {"fs.s3a.session.token": "t", "fs.s3a.access.key": "h", "fs.s3a.endpoint.region": "r"}
    assert at(BUCKET, {"access_key_id": "k", "secret_access_key": "s"}, hadoop) == {
        "access_key_id": "k",
        "secret_access_key": "s",
        "region": "r",
    }
    assert at(BUCKET, {"region": "own"}, hadoop) == {"session_token": "t", "access_key_id": "h", "region": "own"}


# --- what is refused


@for_each(
    [
        ({"server_side_encryption": "sse-c"}, {}),
        ({}, {"fs.s3a.encryption.algorithm": "SSE-C"}),
        ({}, {"fs.s3a.encryption.algorithm": "CSE-KMS"}),
        ({}, {"fs.s3a.server-side-encryption-algorithm": "CSE-CUSTOM"}),
    ]
)
def test_encryption_that_cannot_be_kept_is_refused(given: dict[str, str], hadoop: dict[str, str]) -> None:
    """Files would lie there in clear, or could not be placed."""
    with pytest.raises(UnsupportedError):
        at(BUCKET, given, hadoop)


@pytest.mark.parametrize(
    ("name", "value"),
    [("AWS_SERVER_SIDE_ENCRYPTION", "sse-c"), ("AWS_SSE_CUSTOMER_KEY_BASE64", "k"), ("AZURE_ENCRYPTION_KEY", "k")],
)
def test_keys_of_the_customers_own_in_the_environment_are_refused(name: str, value: str) -> None:
    url = CONTAINER if name.startswith("AZURE") else BUCKET
    with pytest.raises(UnsupportedError, match="SSE-C"):
        environment_of(url.cloud, {name: value})


@for_each(["s3://", "s3:///t", "gs://u@b/t", "abfs://c@/t", "abfs://c@acc/t", "abfs://@acc.dfs.core.windows.net/t"])
def test_an_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="in the URL"):
        ObjectUrl.parse(url)


@for_each(
    ["s3://b--usw2-az1--x-s3/t", "s3a://arn:aws:s3:eu-west-1:1:accesspoint/n/t", "s3://n.mrap/t", "s3://n--ol-s3/t"]
)
def test_kinds_of_buckets_that_are_refused(url: str) -> None:
    """An alias of an access point is as a bucket."""
    with pytest.raises(UnsupportedError, match=r"bucket|access point"):
        ObjectUrl.parse(url)
    assert ObjectUrl.parse("s3://n-abc-s3alias/t").bucket == "n-abc-s3alias"


def test_the_account_of_the_url_is_the_account() -> None:
    with pytest.raises(UsageError, match="two accounts"):
        at(CONTAINER, {"account_name": "other"})
    elsewhere = ObjectUrl.parse("abfss://c@acc.z01.dfs.storage.azure.net/t")
    assert at(elsewhere, {})["endpoint"] == "https://acc.z01.blob.storage.azure.net"
    assert at(elsewhere, {"endpoint": "http://h"})["endpoint"] == "http://h"


# --- secrets


@pytest.mark.parametrize("url", [BUCKET, CONTAINER, GOOGLE], ids=lambda url: url.cloud.name)
def test_secrets_are_not_shown_and_do_not_travel(url: ObjectUrl) -> None:
    given = {setting.name: f"hidden-{setting.name}" for setting in SETTINGS[url.cloud.name]}
    if url.cloud is AZURE:
        given["account_name"] = "acc"
    options = StorageOptions.of(given)
    settings = options.at(url)
    assert "hidden" not in f"{options!r} {settings!r}"
    sent = without_secrets(settings, url.cloud)
    secret = {setting.name: setting.variables[0] for setting in SETTINGS[url.cloud.name] if setting.secret}
    assert len(secret) >= 3
    assert {name for name, _ in sent.given} == given.keys() - secret.keys()
    assert set(sent.withheld) == set(secret.values())
    again = without_secrets(sent.at(url), url.cloud)
    assert again == sent


@for_each(
    [
        ("secret_access_key", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_TOKEN", "AWS_SESSION_TOKEN"),
        ("aws_access_key_id", "AWS_ACCESS_KEY_ID"),
        ("fs.s3a.secret.key", "AWS_SECRET_ACCESS_KEY"),
        ("fs.s3a.bucket.my.bucket.secret.key", "AWS_SECRET_ACCESS_KEY"),
        ("fs.azure.account.key.acc.dfs.core.windows.net", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("fs.azure.account.oauth2.client.secret", "AZURE_CLIENT_SECRET"),
        ("proxy_url", "AWS_PROXY_URL"),
        ("bearer_token", "GOOGLE_BEARER_TOKEN"),
    ]
)
def test_options_are_pickled_without_secrets(name: str, variable: str) -> None:
    """Under whatever name: a reader of Spark, or a writer, may be sent to a task."""
    for options in (
        StorageOptions.of({name: "hidden", "region": "r"}),
        StorageOptions.of({"region": "r"}).over({name: "hidden"}),
    ):
        sent = pickle.dumps(options)
        assert b"hidden" not in sent
        there = pickle.loads(sent)
        assert there.withheld == (variable,)
        assert there.given == (("region", "r"),)
        assert pickle.loads(pickle.dumps(there)) == there


def test_nothing_is_withheld_without_secrets() -> None:
    assert without_secrets(Settings(values=(("region", "r"),)), BUCKET.cloud).withheld == ()
