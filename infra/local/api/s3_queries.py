"""Refuses what S3 refuses and moto does not: numbers in a query that are none, which moto answers
as its own failure, names of new buckets that S3 doesn't allow, and XML that is made to hurt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl
from xml.parsers import expat

from nodesweep.infra.local.api.dialect import protocol_of
from nodesweep.infra.local.api.protocol import ApiError, CredentialScope

_NUMBERS = frozenset({"max-keys", "max-parts", "max-uploads", "part-number-marker", "partNumber"})
_LARGEST = 2**31 - 1
_XML_OF_OBJECTS = frozenset({"acl", "legal-hold", "retention", "tagging"})
_DEEPEST = 50
"""Elements within elements; S3's own bodies have fewer than 10."""


def check_numbers(environ: Mapping[str, Any], scope: CredentialScope | None) -> None:
    """Raises InvalidArgument for a query of S3 in which a count or the number of a part is no
    whole number from 0 on.
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
"""S3's naming rules for general purpose buckets."""


def check_bucket_name(environ: Mapping[str, Any], scope: CredentialScope | None) -> None:
    """Raises InvalidBucketName for a CreateBucket with a name that S3 doesn't allow."""
    name = str(environ.get("PATH_INFO", "")).strip("/")
    is_creation = environ.get("REQUEST_METHOD") == "PUT" and not environ.get("QUERY_STRING")
    if scope is None or scope.service != "s3" or not is_creation or "/" in name or not name:
        return
    is_allowed = _BUCKET_NAME.fullmatch(name) is not None
    if not is_allowed or name.startswith(_KEPT_STARTS) or name.endswith(_KEPT_ENDS):
        raise ApiError("InvalidBucketName", "The specified bucket is not valid.")


def check_xml(environ: Mapping[str, Any], body: bytes) -> None:
    """Raises MalformedXML for a body of XML that is not well-formed, brings entities or a document
    type, which no service takes, or is nested too deep to be read.
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
    """Return True if the operation takes XML. The body of an object is whatever the object is."""
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
