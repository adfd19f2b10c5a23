"""Operations of S3 that moto would mistake for others are refused and change nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

UNMODELLED: list[tuple[str, dict[str, Any]]] = [
    ("delete_bucket_metrics_configuration", {"Id": "all"}),  # deleted the bucket
    ("get_bucket_analytics_configuration", {"Id": "all"}),  # listed its objects
    ("get_bucket_request_payment", {}),
    ("get_object_retention", {"Key": "kept"}),  # failed inside
    (
        "select_object_content",  # failed inside at SQL that moto can't parse
        {
            "Key": "kept",
            "Expression": "selec * from s3object",
            "ExpressionType": "SQL",
            "InputSerialization": {"CSV": {}},
            "OutputSerialization": {"CSV": {}},
        },
    ),
    ("rename_object", {"Key": "kept", "RenameSource": "other"}),  # emptied the object
]


@pytest.mark.parametrize(("operation", "arguments"), UNMODELLED, ids=[one[0] for one in UNMODELLED])
def test_refused_and_nothing_is_changed(
    platform: SimpleNamespace, operation: str, arguments: dict[str, Any]
) -> None:
    bucket = operation.replace("_", "-")
    platform.s3.create_bucket(Bucket=bucket)
    if "Key" in arguments:
        platform.s3.put_object(Bucket=bucket, Key="kept", Body=b"1,2\n")
    with pytest.raises(ClientError) as caught:
        getattr(platform.s3, operation)(Bucket=bucket, **arguments)
    answer = caught.value.response
    assert answer["Error"]["Code"] == "NotImplemented"
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 501
    if "Key" in arguments:
        assert platform.s3.get_object(Bucket=bucket, Key="kept")["Body"].read() == b"1,2\n"
    platform.s3.head_bucket(Bucket=bucket)


def test_queries_of_modelled_operations_pass(platform: SimpleNamespace) -> None:
    platform.s3.create_bucket(Bucket="queried")
    platform.s3.put_object(Bucket="queried", Key="a", Body=b"1")
    tags = {"TagSet": [{"Key": "team", "Value": "search"}]}
    platform.s3.put_object_tagging(Bucket="queried", Key="a", Tagging=tags)
    assert platform.s3.get_object_tagging(Bucket="queried", Key="a")["TagSet"] == tags["TagSet"]
    listed = platform.s3.list_objects_v2(Bucket="queried", Prefix="a", MaxKeys=1)
    assert listed["KeyCount"] == 1
    assert platform.s3.get_bucket_versioning(Bucket="queried").get("Status") is None
    upload = platform.s3.create_multipart_upload(Bucket="queried", Key="b")["UploadId"]
    platform.s3.abort_multipart_upload(Bucket="queried", Key="b", UploadId=upload)
    url = platform.s3.generate_presigned_url("get_object", Params={"Bucket": "queried", "Key": "a"})
    assert "Signature" in url


def test_an_upload_that_is_not_there_is_refused_by_its_name(platform: SimpleNamespace) -> None:
    platform.s3.create_bucket(Bucket="parts")
    platform.s3.put_object(Bucket="parts", Key="a", Body=b"1")
    of = {"Bucket": "parts", "Key": "b", "UploadId": "absent"}
    parts = {"Parts": [{"PartNumber": 1, "ETag": "0"}]}
    source = {"Bucket": "parts", "Key": "a"}
    for call, more in (
        (platform.s3.upload_part, {"PartNumber": 1, "Body": b"1"}),
        (platform.s3.upload_part_copy, {"PartNumber": 1, "CopySource": source}),
        (platform.s3.complete_multipart_upload, {"MultipartUpload": parts}),
    ):
        with pytest.raises(platform.s3.exceptions.NoSuchUpload) as refused:
            call(**of, **more)
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
