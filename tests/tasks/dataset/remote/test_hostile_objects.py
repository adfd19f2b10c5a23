"""Unusual objects below a prefix of a bucket, created through the platform's API."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pandas as pd
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest

from infra.local.tests.platform_client import ROLE_ARN, serve_platform, session
from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import DatasetMissing, DatasetRefused
from nodesweep.tasks.dataset.files import scan_directory, upload
from nodesweep.tasks.dataset.remote.objects import describe_remote
from nodesweep.tasks.dataset.remote.validation import remote_tables
from nodesweep.tasks.dataset.validation import validate_tables
from nodesweep.tasks.dataset.validation_report import ValidationReport
from tests.tasks.dataset.test_files import dataset_at

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
ODD_NAMES = (
    "with space", "100%25", "50%", "a+b", "ü-日本-🙂", "tab\there", "quote\"'",
    "what?&x=#1;y", "~tilde", "back\\slash", "<&>", "UPPER", "upper", " leading", "trailing ",
)  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    yield from serve_platform(tmp_path_factory.mktemp("platform"))


@pytest.fixture
def bucket(served: SimpleNamespace, request: pytest.FixtureRequest) -> str:
    name = f"bucket-{abs(hash(request.node.name))}"
    served.s3.create_bucket(Bucket=name)
    return name


def at(served: SimpleNamespace, bucket: str) -> PlatformConfig:
    return PlatformConfig(
        region="us-east-1",
        bucket=bucket,
        role_arn=ROLE_ARN,
        endpoint_url=served.endpoint,
        credentials="platform",
        state_directory=str(served.state_dir),
    )


def table(**columns: list[Any]) -> bytes:
    out = io.BytesIO()
    pd.DataFrame(columns).to_parquet(out)
    return out.getvalue()


def put(served: SimpleNamespace, bucket: str, **objects: bytes) -> None:
    for name, body in objects.items():
        served.s3.put_object(Bucket=bucket, Key=f"raw/{name}.parquet", Body=body)


def check(served: SimpleNamespace, bucket: str, kind: str = "parquet") -> ValidationReport:
    """Check the dataset as a run does."""
    s3, config = aws_client("s3", at(served, bucket)), dataset_at(f"s3://{bucket}/raw", kind)
    return validate_tables(remote_tables(s3, describe_remote(s3, config), config), config, now=NOW)


@pytest.mark.parametrize("is_versioned", [False, True])
def test_objects_with_odd_names_are_found_and_read(
    served: SimpleNamespace, bucket: str, is_versioned: bool
) -> None:
    if is_versioned:
        served.s3.put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
        )
    put(served, bucket, **{name: table(a=[1, 2]) for name in ODD_NAMES})
    report = check(served, bucket)
    assert report.success and report.rows == 2 * len(ODD_NAMES)
    assert {file.file for file in report.files} == {f"{name}.parquet" for name in ODD_NAMES}


def test_local_files_with_odd_names_are_sent_once(
    served: SimpleNamespace,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (*ODD_NAMES, "empty"):
        path = tmp_path / "data" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"" if name == "empty" else name.encode())
    config, platform = dataset_at(tmp_path / "data"), at(served, bucket)
    s3 = aws_client("s3", platform)
    first = upload(s3, scan_directory(config), config.name, platform.bucket, platform.prefix)
    assert first.sent_files == len(ODD_NAMES)  # and one without a byte
    prefix = first.uri.removeprefix(f"s3://{bucket}/")
    there = s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    assert {item["Key"].removeprefix(prefix): item["Size"] for item in there} == {
        "empty.parquet": 0,
        **{f"{name}.parquet": len(name.encode()) for name in ODD_NAMES},
    }
    again = upload(s3, scan_directory(config), config.name, platform.bucket, platform.prefix)
    assert (again.digest, again.sent_files, again.sent_bytes) == (first.digest, 0, 0)
    assert s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"] == there


@pytest.mark.parametrize("kind", ["parquet", "files"])
def test_a_prefix_with_the_consoles_folder_alone_is_empty(
    served: SimpleNamespace, bucket: str, kind: str
) -> None:
    served.s3.put_object(Bucket=bucket, Key="raw/", Body=b"")
    served.s3.put_object(Bucket=bucket, Key="raw/sub/", Body=b"")
    with pytest.raises(DatasetMissing, match=f"object under s3://{bucket}/raw"):
        describe_remote(
            aws_client("s3", at(served, bucket)), dataset_at(f"s3://{bucket}/raw", kind)
        )


def test_objects_without_a_byte_are_named(served: SimpleNamespace, bucket: str) -> None:
    put(served, bucket, a=table(a=[1]), empty=b"")
    served.s3.put_object(Bucket=bucket, Key="raw/empty.csv", Body=b"")
    for kind in ("parquet", "csv"):
        (problem,) = (one for one in check(served, bucket, kind).problems if one.file)
        assert problem.message.startswith(f"empty.{kind} ")
    found = describe_remote(
        aws_client("s3", at(served, bucket)), dataset_at(f"s3://{bucket}/raw", "files")
    )
    assert len(found.objects) == 3, "files may be empty"


def test_a_column_that_changes_its_type_between_objects_is_named(
    served: SimpleNamespace, bucket: str
) -> None:
    put(served, bucket, a=table(a=[1]), b=table(a=[2]), c=table(a=["three"]))
    (problem,) = check(served, bucket).problems
    assert (
        "int64 in a.parquet" in problem.message and "large_string in c.parquet" in problem.message
    )


@pytest.mark.slow
def test_a_truncated_file_among_a_hundred_is_named_and_the_others_are_judged(
    served: SimpleNamespace, bucket: str
) -> None:
    body = table(a=[1, 2])
    objects = {f"part-{number:04}": body for number in range(100)}
    put(served, bucket, **{**objects, "part-0061": body[:-20]})
    report = check(served, bucket)
    (problem,) = report.problems
    assert problem.message.startswith("part-0061.parquet can't be")
    assert report.rows == 2 * 99


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../x", "parquet"), ("a//x", "parquet"), ("./x", "parquet"), ("a/../x", "files")],
)
def test_a_key_that_is_no_path_below_the_prefix_is_refused_by_name(
    served: SimpleNamespace, bucket: str, name: str, kind: str
) -> None:
    put(served, bucket, **{name: table(a=[1])})
    with pytest.raises(DatasetRefused) as refused:
        check(served, bucket, kind)
    assert f"s3://{bucket}/raw/{name}.parquet " in str(refused.value)


def test_a_key_that_is_not_utf_8_is_refused(served: SimpleNamespace, bucket: str) -> None:
    """No S3 client can send such a key, so the request is built by hand."""
    url = f"{served.endpoint}/{bucket}/raw/caf%E9.parquet"
    request = AWSRequest("PUT", url, {"Content-Type": "text/plain"}, data=b"1")
    S3SigV4Auth(session(served.endpoint).get_credentials(), "s3", "us-east-1").add_auth(request)
    with urlopen(Request(url, b"1", dict(request.headers), method="PUT"), timeout=300) as answer:
        assert answer.status == 200
    with pytest.raises(DatasetRefused, match=r"raw/caf.*\.parquet: .*UTF-8"):
        check(served, bucket)


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_object_that_is_deleted_or_replaced_while_it_is_read_is_named(
    served: SimpleNamespace, bucket: str, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    if not is_whole:
        monkeypatch.setattr("nodesweep.infra.image_spark.nodesweep_judge.range_file.WHOLE_BYTES", 0)
    s3, config = aws_client("s3", at(served, bucket)), dataset_at(f"s3://{bucket}/raw")
    for what in ("deleted", "replaced"):
        put(served, bucket, a=table(a=[1]), b=table(a=[1]))
        found = describe_remote(s3, config)
        if what == "deleted":
            served.s3.delete_object(Bucket=bucket, Key="raw/b.parquet")
        else:
            put(served, bucket, b=table(a=[2]))
        with pytest.raises(DatasetRefused) as refused:
            validate_tables(remote_tables(s3, found, config), config, now=NOW)
        assert f"s3://{bucket}/raw/b.parquet was {what} " in str(refused.value)
