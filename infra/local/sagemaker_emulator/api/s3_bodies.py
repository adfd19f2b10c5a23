"""Validates the XML bodies of S3 operations against botocore's models before moto reads them.

moto expects certain elements in certain places. Given a different structure, it fails halfway or
stores a value that breaks all later calls. The body is therefore rewritten as botocore would send
it, without other namespaces, prefixes, comments and attributes.
"""

from __future__ import annotations

import functools
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

from botocore.model import ListShape, OperationModel, Shape, StructureShape
from botocore.utils import parse_timestamp

from sagemaker_emulator.api.dialect import protocol_of
from sagemaker_emulator.api.moto_operations import operations_of_moto, s3_request_signature
from sagemaker_emulator.api.protocol import ApiError, read_body
from sagemaker_emulator.api.validation import service_model

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_XSI = "http://www.w3.org/2001/XMLSchema-instance"
_ALSO_REQUIRED: Mapping[str, frozenset[str]] = {
    "CompletedMultipartUpload": frozenset({"Parts"}),
    "CompletedPart": frozenset({"ETag", "PartNumber"}),
    "ObjectLockLegalHold": frozenset({"Status"}),
    "AccelerateConfiguration": frozenset({"Status"}),
    "VersioningConfiguration": frozenset({"Status"}),
    "DefaultRetention": frozenset({"Mode"}),
    "ObjectLockConfiguration": frozenset({"ObjectLockEnabled"}),
    "Grant": frozenset({"Grantee", "Permission"}),
    "TargetGrant": frozenset({"Grantee", "Permission"}),
    "Transition": frozenset({"StorageClass"}),
    "NoncurrentVersionTransition": frozenset({"NoncurrentDays", "StorageClass"}),
    "FilterRule": frozenset({"Name", "Value"}),
}
"""Members that S3 requires according to its API reference, but not its model, by shape."""
_HAVE_ONE = frozenset({"ServerSideEncryptionRules", "OwnershipControlsRules"})
"""Lists that may contain only one item."""
_MAY_BE_EMPTY = frozenset({"Value"})  # of a tag; all other required strings must not be empty
_ANSWERED_OTHERWISE = frozenset({"BucketLocationConstraint", "Event", "Type"})
"""Enums with special errors in S3, which moto returns."""
_MAY_HAVE_NO_BODY = frozenset({"CreateBucket", "PutBucketAcl", "PutObjectAcl"})
_BOOLEANS = {"true": "true", "false": "false", "1": "true", "0": "false"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_BY_UPLOAD = ("POST", True, "uploadId")


def use_modelled_xml(environ: dict[str, Any]) -> None:
    """Rewrite the well-formed XML body of an S3 operation as its model defines it.

    Raises:
        MalformedXML: If the body does not match the model.
        MissingRequestBodyError: If the operation needs a body, but the request has none.
        InvalidArgument: If the query selects more than one operation.
    """
    if protocol_of(environ) != "s3":
        return
    asked = _operations_asked(environ)
    if len(asked) > 1:
        raise ApiError(
            "InvalidArgument", f"Conflicting query string parameters: {', '.join(sorted(asked))}"
        )
    for operation in asked.values():
        body = read_body(environ)
        if body:
            written = b"".join(_root(operation, ElementTree.fromstring(body)))
            environ["wsgi.input"] = io.BytesIO(written)
            environ["CONTENT_LENGTH"] = str(len(written))
        elif operation.name not in _MAY_HAVE_NO_BODY:
            raise ApiError("MissingRequestBodyError", "Request Body is empty")


def _operations_asked(environ: Mapping[str, Any]) -> dict[str, OperationModel]:
    """Return the operations with an XML body that a request selects, by query key."""
    method = str(environ.get("REQUEST_METHOD"))
    bucket, _, key = str(environ.get("PATH_INFO", "")).lstrip("/").partition("/")
    query = str(environ.get("QUERY_STRING", ""))
    names = {name for name, _ in parse_qsl(query, keep_blank_values=True)}
    readers = _readers()
    if (
        method == "PUT"
        and bucket
        and not key
        and not any((method, False, n) in readers for n in names)
    ):
        names = {""}
    found = {name: readers.get((method, bool(key), name)) for name in names}
    return {name: operation for name, operation in found.items() if operation is not None}


@functools.cache
def _readers() -> dict[tuple[str, bool, str], OperationModel]:
    """Return the operations with an XML body that moto implements, by request signature."""
    model = service_model("s3")
    found = {("PUT", False, ""): model.operation_model("CreateBucket")}
    for name in sorted(operations_of_moto("s3")):
        operation = model.operation_model(name)
        sign = s3_request_signature(operation)
        if sign and not operation.deprecated and _payload(operation) is not None:
            found[sign] = operation
    return found | {_BY_UPLOAD: model.operation_model("CompleteMultipartUpload")}


def _payload(operation: OperationModel) -> StructureShape | None:
    """Return the shape of the XML body of an operation, or None if it has no XML body."""
    shape = operation.input_shape
    if shape is None or operation.has_streaming_input:
        return None
    if "payload" in shape.serialization:
        payload = shape.members[shape.serialization["payload"]]
        return payload if isinstance(payload, StructureShape) else None
    return shape if "name" in shape.serialization else None


def _root(operation: OperationModel, element: ElementTree.Element) -> Iterator[bytes]:
    shape = _payload(operation)
    assert shape is not None
    name = shape.serialization["name"]
    if _local(element.tag) != name:
        _refuse(f"{_local(element.tag)} is not {name}")
    yield from _written(shape, element, name, f' xmlns="{_NAMESPACE}"')


def _written(
    shape: Shape, element: ElementTree.Element, name: str, attributes: str = ""
) -> Iterator[bytes]:
    """Serialize an element as the model defines it.

    Raises:
        MalformedXML: If the element does not match the model.
    """
    if isinstance(shape, StructureShape):
        attributes += _attributes(shape, element)
        content: Iterable[bytes] = _members(shape, element)
    elif isinstance(shape, ListShape):
        content = _items(shape, element)
    else:
        content = (_text(shape, element).encode(),)
    yield f"<{name}{attributes}>".encode()
    yield from content
    yield f"</{name}>".encode()


def _attributes(shape: StructureShape, element: ElementTree.Element) -> str:
    for name, member in shape.members.items():
        if member.serialization.get("xmlAttribute"):
            value = element.get(f"{{{_XSI}}}{member.serialization['name'].partition(':')[2]}")
            if value is None and name in shape.required_members:
                _refuse(f"{_local(element.tag)} has no {member.serialization['name']}")
            if value is not None:
                return f' xmlns:xsi="{_XSI}" {member.serialization["name"]}={quoteattr(value)}'
    return ""


def _members(shape: StructureShape, element: ElementTree.Element) -> Iterator[bytes]:
    _refuse_text(element)
    members = {
        member.serialization.get("name", name): (name, member)
        for name, member in shape.members.items()
        if not member.serialization.get("xmlAttribute") and "location" not in member.serialization
    }
    found = Counter(_local(child.tag) for child in element)
    required = {*shape.required_members, *_ALSO_REQUIRED.get(shape.name, ())}
    for tag, (name, member) in members.items():
        if name in required and not found[tag]:
            _refuse(f"{_local(element.tag)} has no {tag}")
        is_list = member.serialization.get("flattened") and member.name not in _HAVE_ONE
        if found[tag] > 1 and not is_list:
            _refuse(f"{_local(element.tag)} has more than one {tag}")
    for child in element:
        tag = _local(child.tag)
        if tag not in members:
            _refuse(f"{_local(element.tag)} has no element {tag}")
        name, member = members[tag]
        if isinstance(member, ListShape) and member.serialization.get("flattened"):
            member = member.member
        is_needed = name in required and member.name not in _MAY_BE_EMPTY
        if member.type_name == "string" and (is_needed or members[tag][1].type_name == "list"):
            _refuse_empty(child)
        yield from _written(member, child, tag)


def _items(shape: ListShape, element: ElementTree.Element) -> Iterator[bytes]:
    _refuse_text(element)
    name = shape.member.serialization.get("name", "member")
    for child in element:
        if _local(child.tag) != name:
            _refuse(f"{_local(element.tag)} has no element {_local(child.tag)}")
        yield from _written(shape.member, child, name)


def _text(shape: Shape, element: ElementTree.Element) -> str:
    """Return the escaped text of a leaf element.

    Raises:
        MalformedXML: If the text does not have the type of the shape.
    """
    name, text = _local(element.tag), element.text or ""
    if len(element):
        _refuse(f"{name} contains elements, but its type is {shape.type_name}")
    is_right = len(text) >= shape.metadata.get("min", 0)
    if shape.name not in _ANSWERED_OTHERWISE and (allowed := shape.metadata.get("enum")):
        is_right = text in allowed
    if shape.type_name != "string":
        text = text.strip()
        is_right = _is_of_type(shape.type_name, text)
    if not is_right:
        _refuse(
            f"{name} is not a valid"
            f" {shape.name if shape.type_name == 'string' else shape.type_name}"
        )
    if shape.type_name == "boolean":
        text = _BOOLEANS[text.lower()]
    return escape(text, {"\r": "&#13;"})


def _is_of_type(type_name: str, text: str) -> bool:
    if type_name in ("integer", "long"):
        return _INTEGER.fullmatch(text) is not None
    if type_name == "boolean":
        return text.lower() in _BOOLEANS
    try:
        parse_timestamp(text)
    except (ValueError, OverflowError):
        return False
    return True


def _refuse_text(element: ElementTree.Element) -> None:
    texts = [element.text, *(child.tail for child in element)]
    if any(text and text.strip() for text in texts):
        _refuse(f"{_local(element.tag)} contains text, but only elements are allowed")


def _refuse_empty(element: ElementTree.Element) -> None:
    if not len(element) and not element.text:
        _refuse(f"{_local(element.tag)} is empty")


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _refuse(reason: str) -> NoReturn:
    raise ApiError(
        "MalformedXML",
        "The XML you provided was not well-formed or did not validate against our published schema:"
        f" {reason}",
    )
