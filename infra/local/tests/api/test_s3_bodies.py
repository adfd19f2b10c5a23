"""Well-formed XML with a wrong structure is refused with S3's messages, and changes nothing."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from types import SimpleNamespace
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import serve_platform
from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.api.s3_bodies import _readers

ElementTree.register_namespace("xsi", "http://www.w3.org/2001/XMLSchema-instance")
GRANT = (
    '<Grant><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
    ' xsi:type="CanonicalUser"><ID>x</ID></Grantee><Permission>READ</Permission></Grant>'
)
ACL = (
    "<AccessControlPolicy><Owner><ID>"
    "75aa57f09aa0c8caeab4f8c24e99d10f8e7faeebf76c078efc7c6caea54ba06a</ID></Owner>"
    f"<AccessControlList>{GRANT}</AccessControlList></AccessControlPolicy>"
)
TAGS = "<TagSet><Tag><Key>a</Key><Value>b</Value></Tag><Tag><Key>c</Key><Value/></Tag></TagSet>"
TAGGING = f"<Tagging>{TAGS}</Tagging>"
BODIES = {
    "PUT /made": "<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint>"
    "</CreateBucketConfiguration>",
    "PUT /plain?tagging": TAGGING,
    "PUT /plain?lifecycle": "<LifecycleConfiguration><Rule><ID>a</ID><Filter><And><Prefix>x"
    "</Prefix><Tag><Key>a</Key><Value>b</Value></Tag></And></Filter><Status>Enabled</Status>"
    "<Expiration><Days>3</Days></Expiration><Transition><Days>2</Days><StorageClass>GLACIER"
    "</StorageClass></Transition><NoncurrentVersionTransition><NoncurrentDays>3</NoncurrentDays>"
    "<StorageClass>GLACIER</StorageClass></NoncurrentVersionTransition>"
    "<NoncurrentVersionExpiration><NoncurrentDays>4</NoncurrentDays></NoncurrentVersionExpiration>"
    "<AbortIncompleteMultipartUpload><DaysAfterInitiation>3</DaysAfterInitiation>"
    "</AbortIncompleteMultipartUpload></Rule><Rule><Filter><Prefix/></Filter><Status>Disabled"
    "</Status><Expiration><Date>2030-01-01T00:00:00Z</Date></Expiration></Rule>"
    "</LifecycleConfiguration>",
    "PUT /versioned?versioning": "<VersioningConfiguration><Status>Enabled</Status>"
    "</VersioningConfiguration>",
    "PUT /plain?cors": "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod>"
    "<AllowedOrigin>*</AllowedOrigin><AllowedHeader>*</AllowedHeader><ExposeHeader>x"
    "</ExposeHeader><MaxAgeSeconds>3</MaxAgeSeconds></CORSRule></CORSConfiguration>",
    "PUT /plain?encryption": "<ServerSideEncryptionConfiguration><Rule>"
    "<ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256</SSEAlgorithm>"
    "</ApplyServerSideEncryptionByDefault><BucketKeyEnabled>true</BucketKeyEnabled></Rule>"
    "</ServerSideEncryptionConfiguration>",
    "PUT /plain?acl": ACL,
    "PUT /plain?notification": "<NotificationConfiguration><TopicConfiguration><Id>a</Id><Topic>"
    "arn:aws:sns:us-east-1:1:a</Topic><Event>s3:ObjectCreated:*</Event><Filter><S3Key>"
    "<FilterRule><Name>prefix</Name><Value>a</Value></FilterRule></S3Key></Filter>"
    "</TopicConfiguration><EventBridgeConfiguration/></NotificationConfiguration>",
    "PUT /plain?logging": "<BucketLoggingStatus><LoggingEnabled><TargetBucket>logs</TargetBucket>"
    f"<TargetPrefix>a</TargetPrefix><TargetGrants>{GRANT}</TargetGrants></LoggingEnabled>"
    "</BucketLoggingStatus>",
    "PUT /plain?publicAccessBlock": "<PublicAccessBlockConfiguration><BlockPublicAcls>true"
    "</BlockPublicAcls><IgnorePublicAcls>TRUE</IgnorePublicAcls></PublicAccessBlockConfiguration>",
    "PUT /locked?object-lock": "<ObjectLockConfiguration><ObjectLockEnabled>Enabled"
    "</ObjectLockEnabled><Rule><DefaultRetention><Mode>GOVERNANCE</Mode><Days>1</Days>"
    "</DefaultRetention></Rule></ObjectLockConfiguration>",
    "PUT /versioned?replication": "<ReplicationConfiguration><Role>arn:aws:iam::1:role/r</Role>"
    "<Rule><ID>a</ID><Priority>1</Priority><Filter><Prefix/></Filter><Status>Enabled</Status>"
    "<DeleteMarkerReplication><Status>Disabled</Status></DeleteMarkerReplication><Destination>"
    "<Bucket>arn:aws:s3:::versioned-2</Bucket></Destination></Rule></ReplicationConfiguration>",
    "PUT /plain?accelerate": "<AccelerateConfiguration><Status>Enabled</Status>"
    "</AccelerateConfiguration>",
    "PUT /plain?website": "<WebsiteConfiguration><IndexDocument><Suffix>a</Suffix></IndexDocument>"
    "<ErrorDocument><Key>e</Key></ErrorDocument></WebsiteConfiguration>",
    "PUT /plain?ownershipControls": "<OwnershipControls><Rule><ObjectOwnership>ObjectWriter"
    "</ObjectOwnership></Rule></OwnershipControls>",
    "PUT /plain?inventory&id=a": "<InventoryConfiguration><Destination><S3BucketDestination>"
    "<Bucket>arn:aws:s3:::plain</Bucket><Format>CSV</Format></S3BucketDestination></Destination>"
    "<IsEnabled>true</IsEnabled><Id>a</Id><IncludedObjectVersions>All</IncludedObjectVersions>"
    "<Schedule><Frequency>Daily</Frequency></Schedule></InventoryConfiguration>",
    "PUT /plain/key?tagging": TAGGING,
    "PUT /plain/key?acl": ACL,
    "PUT /locked/key?retention": "<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>"
    "2030-01-01T00:00:00Z</RetainUntilDate></Retention>",
    "PUT /locked/key?legal-hold": "<LegalHold><Status>OFF</Status></LegalHold>",
    "POST /plain?delete": "<Delete><Object><Key> gone\r</Key></Object><Object><Key>gone2</Key>"
    "</Object><Quiet>true</Quiet></Delete>",
    "POST /plain/big?uploadId={upload}": "<CompleteMultipartUpload><Part><PartNumber>1"
    '</PartNumber><ETag>"{etag}"</ETag></Part></CompleteMultipartUpload>',
    "POST /plain/cold?restore": "<RestoreRequest><Days>1</Days><GlacierJobParameters><Tier>Bulk"
    "</Tier></GlacierJobParameters></RestoreRequest>",
}
REFUSED = (400, "MalformedXML")
MAY_BE_EMPTY = {
    "CreateBucketConfiguration",
    "NotificationConfiguration",
    "BucketLoggingStatus",
    "PublicAccessBlockConfiguration",  # like S3, moto responds with InvalidRequest
    "AccessControlPolicy",  # moto responds with MalformedACLError
    "WebsiteConfiguration",
    "Retention",  # removes it
    "RestoreRequest",
}
NOT_NEEDED = {"PUT /made", "PUT /plain?acl", "PUT /plain/key?acl"}
"""Responses without a body have the error in their headers."""


class Caller:
    """Sends bodies unchanged, like a client that builds its own requests."""

    def __init__(self, platform: SimpleNamespace) -> None:
        self.s3, self._endpoint = platform.s3, platform.endpoint
        self._key = access_keys(platform.state_dir).user
        for bucket in ("plain", "versioned", "versioned-2"):
            self.s3.create_bucket(Bucket=bucket)
        self.s3.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
        versions = {"VersioningConfiguration": {"Status": "Enabled"}}
        for bucket in ("versioned", "versioned-2"):
            self.s3.put_bucket_versioning(Bucket=bucket, **versions)
        for bucket, name in (("plain", "key"), ("locked", "key")):
            self.s3.put_object(Bucket=bucket, Key=name, Body=b"a,b\n1,2\n")
        self.s3.put_object(Bucket="plain", Key="cold", Body=b"1", StorageClass="GLACIER")
        upload = self.s3.create_multipart_upload(Bucket="plain", Key="big")["UploadId"]
        self._place = {"Bucket": "plain", "Key": "big", "UploadId": upload}
        part = self.s3.upload_part(**self._place, PartNumber=1, Body=b"x")
        self._etag = part["ETag"].strip('"')

    def __call__(self, operation: str, xml: str) -> tuple[int, str]:
        """Send the body, and return the status and the error code."""
        method, _, path = operation.format(upload=self._place["UploadId"]).partition(" ")
        body = xml.replace("{etag}", self._etag).encode()
        request = AWSRequest(method, self._endpoint + path, {}, body)
        S3SigV4Auth(Credentials(self._key.id, self._key.secret), "s3", "us-east-1").add_auth(
            request
        )
        connection = HTTPConnection(urlsplit(self._endpoint).netloc, timeout=300)
        connection.request(method, path, body, dict(request.headers))
        answer = connection.getresponse()
        code = re.search(rb"<Code>(.*?)</Code>", answer.read())
        connection.close()
        return answer.status, code[1].decode() if code else ""


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    for platform in serve_platform(tmp_path_factory.mktemp("platform")):
        yield Caller(platform)


def wrong_shapes(xml: str) -> Iterator[tuple[str, str]]:
    """Yield (description, body) for bodies that do not match the operation's schema."""
    root = ElementTree.fromstring(xml)
    yield "wrong root", "<Foo/>"
    yield "text as root", f"<{root.tag}>text</{root.tag}>"
    yield "root in another", f"<Foo>{ElementTree.tostring(root, 'unicode')}</Foo>"
    if root.tag not in MAY_BE_EMPTY:
        yield "empty root", f"<{root.tag}/>"
    for index, _ in enumerate(root.iter()):

        def changed(change: Callable[[ElementTree.Element], None], index: int = index) -> str:
            tree = copy.deepcopy(root)
            change(list(tree.iter())[index])
            return ElementTree.tostring(tree, "unicode")

        def add_element(element: ElementTree.Element) -> None:
            ElementTree.SubElement(element, "Foo").text = "text"

        def rename(element: ElementTree.Element) -> None:
            element.tag = "Foo"

        def make_text(element: ElementTree.Element) -> None:
            element[:], element.text = [], "text"

        path = list(root.iter())[index].tag
        yield f"an element in {path}", changed(add_element)
        yield f"{path} renamed", changed(rename)
        if len(list(root.iter())[index]):
            yield f"text for {path}", changed(make_text)


def any_change(xml: str) -> Iterator[tuple[str, str]]:
    """Yield (description, body) for bodies that S3 might accept."""
    root = ElementTree.fromstring(xml)
    for index, element in enumerate(root.iter()):
        for how in ("emptied", "text", "mixed", "attribute", "missing", "twice"):
            tree = copy.deepcopy(root)
            one = list(tree.iter())[index]
            parent = next((each for each in tree.iter() if one in list(each)), None)
            if how in ("emptied", "text"):
                one[:], one.text = [], None if how == "emptied" else "text"
            elif how == "mixed":
                one.text = "text"
            elif how == "attribute":
                one.set("foo", "bar")
            elif parent is None:
                continue
            elif how == "missing":
                parent.remove(one)
            else:
                parent.append(copy.deepcopy(one))
            yield f"{element.tag} {how}", ElementTree.tostring(tree, "unicode")


def test_every_operation_that_reads_xml_is_tried() -> None:
    tried = set()
    for called in BODIES:
        method, _, path = called.partition(" ")
        place, _, query = path.partition("?")
        name = re.split("[&=]", query)[0]
        tried.add((method, place.count("/") == 2, name))
    assert tried == set(_readers())


@pytest.mark.parametrize("operation", BODIES)
def test_xml_of_a_wrong_shape_is_the_clients_mistake(call: Caller, operation: str) -> None:
    shapes = dict(wrong_shapes(BODIES[operation]))
    answers = {how: call(operation, xml) for how, xml in shapes.items()}
    assert answers == dict.fromkeys(shapes, REFUSED)
    if operation not in NOT_NEEDED:
        assert call(operation, "") == (400, "MissingRequestBodyError")


@pytest.mark.slow
@pytest.mark.parametrize("operation", [name for name in BODIES if "select" not in name])
def test_no_change_of_a_body_fails_the_platform(call: Caller, operation: str) -> None:
    failed = {
        how: answer
        for how, xml in any_change(BODIES[operation])
        if (answer := call(operation, xml))[0] >= 500
    }
    assert failed == {}


def test_a_query_of_two_operations_is_refused(call: Caller) -> None:
    assert call("PUT /plain?tagging&acl", TAGGING) == (400, "InvalidArgument")


PART = "<CompleteMultipartUpload><Part>{}</Part></CompleteMultipartUpload>"


@pytest.mark.parametrize(
    ("operation", "xml"),
    [
        ("PUT /plain/key?tagging", TAGGING.replace("<Key>a</Key>", "<Key/>")),
        ("PUT /plain/key?acl", ACL.replace("READ", "FLY")),
        ("PUT /plain/key?acl", ACL.replace('xsi:type="CanonicalUser"', "")),
        ("PUT /locked/key?legal-hold", "<LegalHold/>"),
        (
            "PUT /locked/key?retention",
            BODIES["PUT /locked/key?retention"].replace("2030-", "soon-"),
        ),
        ("POST /plain?delete", "<Delete><Object/></Delete>"),
        ("POST /plain?delete", "<Delete><Object><Key/></Object></Delete>"),
        ("POST /plain?delete", BODIES["POST /plain?delete"].replace("true", "maybe")),
        ("POST /plain/big?uploadId={upload}", PART.format("<PartNumber>1</PartNumber>")),
        ("POST /plain/big?uploadId={upload}", PART.format("<ETag>1</ETag>")),
        (
            "POST /plain/big?uploadId={upload}",
            PART.format("<ETag>1</ETag><PartNumber>x</PartNumber>"),
        ),
        ("POST /plain/cold?restore", "<RestoreRequest><Days>1.5</Days></RestoreRequest>"),
    ],
)
def test_values_of_a_wrong_type_are_the_clients_mistake(
    call: Caller, operation: str, xml: str
) -> None:
    assert call(operation, xml) == REFUSED


def test_what_is_refused_changes_nothing(call: Caller) -> None:
    assert call("PUT /plain?lifecycle", BODIES["PUT /plain?lifecycle"]) == (200, "")
    before = call.s3.get_bucket_lifecycle_configuration(Bucket="plain")["Rules"]
    half_wrong = BODIES["PUT /plain?lifecycle"].replace("Disabled", "Perhaps")
    assert call("PUT /plain?lifecycle", half_wrong) == REFUSED
    assert call.s3.get_bucket_lifecycle_configuration(Bucket="plain")["Rules"] == before
    keys = "<Object><Key>key</Key></Object><Object><Name>key</Name></Object>"
    assert call("POST /plain?delete", f"<Delete>{keys}</Delete>") == REFUSED
    assert call.s3.head_object(Bucket="plain", Key="key")
    assert call("PUT /not-made", "<Bucket/>") == REFUSED
    with pytest.raises(ClientError, match="404"):
        call.s3.head_bucket(Bucket="not-made")


def test_prefixes_comments_and_other_namespaces_are_read(
    call: Caller,
) -> None:
    xml = (
        '<?xml version="1.0"?><s:Tagging xmlns:s="http://s3.amazonaws.com/doc/2006-03-01/"'
        ' foo="1"><!-- a --><s:TagSet>\n<s:Tag><s:Key>\u00fc&#x31; </s:Key>'
        "<s:Value><![CDATA[b]]>@</s:Value></s:Tag></s:TagSet></s:Tagging>"
    )
    assert call("PUT /plain/key?tagging", xml) == (200, "")
    tags = call.s3.get_object_tagging(Bucket="plain", Key="key")["TagSet"]
    assert tags == [{"Key": "\u00fc1", "Value": "b@"}]
    call.s3.put_object_tagging(Bucket="plain", Key="key", Tagging={"TagSet": []})
    assert call.s3.get_object_tagging(Bucket="plain", Key="key")["TagSet"] == []
    with pytest.raises(ClientError, match="NoSuchKey"):
        call.s3.put_object_tagging(Bucket="plain", Key="none", Tagging={"TagSet": []})


def test_a_key_with_a_carriage_return_is_the_one_that_is_deleted(
    call: Caller,
) -> None:
    name = " a\r b&<>\u00e4 "
    call.s3.put_object(Bucket="plain", Key=name, Body=b"1")
    call.s3.delete_objects(Bucket="plain", Delete={"Objects": [{"Key": name}]})
    with pytest.raises(ClientError, match="404"):
        call.s3.head_object(Bucket="plain", Key=name)


@pytest.mark.parametrize("operation", BODIES)
def test_what_s3_takes_is_taken(call: Caller, operation: str) -> None:
    status, code = call(operation, BODIES[operation])
    assert status < 300 or code in {"InvalidTargetBucketForLogging", "InvalidBucket"}
