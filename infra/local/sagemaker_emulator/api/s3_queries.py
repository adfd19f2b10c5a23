"""Refuses invalid S3 requests that moto accepts or fails on.

These contain malformed numbers in the query (which moto reports as an internal error), bucket names
that S3 does not allow, or malicious XML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl
from xml.parsers import expat

from sagemaker_emulator.api.dialect import protocol_of
from sagemaker_emulator.api.protocol import ApiError, CredentialScope

_NUMBERS = frozenset({"max-keys", "max-parts", "max-uploads", "part-number-marker", "partNumber"})
_LARGEST = 2**31 - 1
_XML_OF_OBJECTS = frozenset({"acl", "legal-hold", "retention", "tagging"})
_DEEPEST = 50
"""Maximum depth of nested elements. S3 bodies have fewer than 10 levels."""


def check_numbers(environ: Mapping[str, Any], scope: CredentialScope | None) -> None:
    """Check the numbers in an S3 query.

    Raises:
        InvalidArgument: If a number is not an integer from 0 to 2**31 - 1.
    """
    if scope is None or scope.service != "s3":
        return
    for name, text in parse_qsl(str(environ.get("QUERY_STRING", "")), keep_blank_values=True):
        if name not in _NUMBERS or not text:
            continue
        if not (text.isascii() and text.isdigit() and int(text[:12]) <= _LARGEST):
            raise ApiError(
                "InvalidArgument", f"Provided {name} not an integer or within integer range"
            )


_BUCKET_NAME = re.compile(r"(?!.*\.\.)(?!\d+\.\d+\.\d+\.\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEPT_STARTS = ("xn--", "sthree-", "amzn-s3-demo-")
_KEPT_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
"""Suffixes that S3 reserves. The prefixes in `_KEPT_STARTS` are reserved, too."""


def check_bucket_name(environ: Mapping[str, Any], scope: CredentialScope | None) -> None:
    """Check the bucket name of a CreateBucket request.

    Raises:
        InvalidBucketName: If S3 does not allow the name.
    """
    name = str(environ.get("PATH_INFO", "")).strip("/")
    is_creation = environ.get("REQUEST_METHOD") == "PUT" and not environ.get("QUERY_STRING")
    if scope is None or scope.service != "s3" or not is_creation or "/" in name or not name:
        return
    is_allowed = _BUCKET_NAME.fullmatch(name) is not None
    if not is_allowed or name.startswith(_KEPT_STARTS) or name.endswith(_KEPT_ENDS):
        raise ApiError("InvalidBucketName", "The specified bucket is not valid.")


def check_xml(environ: Mapping[str, Any], body: bytes) -> None:
    """Check that an XML body is safe to parse.

    Raises:
        MalformedXML: If the body is not well-formed, is nested too deeply, or has a document type
         declaration, which no service accepts.
    """
    if not body or not _is_xml(environ):
        return
    parser, depth = expat.ParserCreate(), 0

    def refuse_doctype(*_: Any) -> None:
        raise _malformed("a document type declaration is not allowed")

    def enter(*_: Any) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise _malformed(f"elements are nested more than {_DEEPEST} deep")

    def leave(*_: Any) -> None:
        nonlocal depth
        depth -= 1

    parser.StartDoctypeDeclHandler = refuse_doctype
    parser.StartElementHandler, parser.EndElementHandler = enter, leave
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise _malformed(str(error)) from error


def _malformed(reason: str) -> ApiError:
    return ApiError("MalformedXML", f"The XML you provided was not well-formed: {reason}")


def _is_xml(environ: Mapping[str, Any]) -> bool:
    """Return True if the body must be XML. The content of an object can be anything."""
    method, protocol = environ.get("REQUEST_METHOD"), protocol_of(environ)
    if protocol != "s3":
        return protocol == "rest-xml"
    query = {name for name, _ in parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)}
    if method == "POST":
        return "multipart/" not in str(environ.get("CONTENT_TYPE", ""))
    is_of_object = "/" in str(environ.get("PATH_INFO", "")).strip("/")
    return method == "PUT" and (
        bool(query & _XML_OF_OBJECTS) if is_of_object else "policy" not in query
    )
