"""Types of config values that name a local directory, a dataset, an image or a URL."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, StringConstraints

from nodesweep.configs.section import LOCAL_PATH, Closed, refuse_placeholders, truncate

MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255
"""Limits of Linux: PATH_MAX less its final NUL, and NAME_MAX.

The config's directory counts toward the length of a relative path.
"""
MAX_S3_KEY_BYTES = 1024
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# S3 User Guide, "General purpose bucket naming rules", as of 2026-11
_RESERVED_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
# [HOST[:PORT]/]PATH[:TAG][@DIGEST], the grammar of github.com/distribution/reference
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    r"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?/)?"
    rf"{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z][A-Za-z0-9+._-]*:[0-9A-Fa-f]{32,})?"
)
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?")


def _check_directory(path: str) -> str:
    if _URL.match(path):
        raise ValueError(f"{truncate(path)!r} is a URL; give a directory on this machine")
    return _check_path(path)


def _check_source(source: str) -> str:
    if not source.startswith("s3://"):
        if _URL.match(source):
            raise ValueError(
                f"{truncate(source)!r} is a URL; give a directory on this machine or "
                f"s3://BUCKET/PREFIX"
            )
        return _check_path(source)
    if not _S3.fullmatch(source):
        raise ValueError(
            "expected s3://BUCKET/PREFIX; a bucket name has 3 to 63 characters of a-z, 0-9, '.'"
            " and '-', and begins and ends with a letter or digit"
        )
    _check_form_of_bucket(source.split("/")[2])
    if len(source.encode()) > len("s3://") + 63 + 1 + MAX_S3_KEY_BYTES:
        raise ValueError(
            f"the prefix is longer than {MAX_S3_KEY_BYTES} bytes, S3's limit for a key"
        )
    return source


def _check_form_of_bucket(name: str) -> None:
    if ".." in name or re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}", name):
        raise ValueError(
            f"{name!r}: an S3 bucket name must not have two dots in a row or look like an IP"
            " address"
        )


def _check_build_argument(text: str) -> str:
    refuse_placeholders("a build argument", text)
    return text


def _check_s3_uri(uri: str) -> str:
    refuse_placeholders("the URI", uri)
    _check_form_of_bucket(uri.split("/")[2])
    return uri


def _check_bucket(name: str) -> str:
    """Check a bucket that may be created; a bucket that is only read can be an alias."""
    _check_form_of_bucket(name)
    if name.startswith(_RESERVED_PREFIXES) or name.endswith(_RESERVED_SUFFIXES):
        raise ValueError(
            f"{name!r}: S3 reserves names that begin with {', '.join(_RESERVED_PREFIXES)}"
            f" or end with {', '.join(_RESERVED_SUFFIXES)}; choose another name"
        )
    return name


def _check_path(path: str) -> str:
    size = len(path.encode())
    if size > MAX_PATH_BYTES:
        raise ValueError(
            f"the path has {size} bytes, but Linux allows at most {MAX_PATH_BYTES}; shorten it"
        )
    longest = max(len(name.encode()) for name in path.split("/"))
    if longest > MAX_NAME_BYTES:
        raise ValueError(
            f"a file name in it has {longest} bytes, but Linux allows at most {MAX_NAME_BYTES}; "
            "shorten it"
        )
    return path


def _check_image(reference: str) -> str:
    if _URL.match(reference) or re.search(r"\s", reference):
        raise ValueError(
            "expected a reference such as REGISTRY/REPOSITORY:TAG or …@sha256:…,"
            " without https:// or spaces"
        )
    if not _IMAGE.fullmatch(reference):
        raise ValueError(
            "expected a reference such as REGISTRY/REPOSITORY:TAG or …@sha256:…; a repository "
            "name consists of lower-case letters, digits and, between these, . _ - and /"
        )
    return reference


LocalDirectory = Annotated[
    str, StringConstraints(min_length=1), AfterValidator(_check_directory), LOCAL_PATH
]
DatasetSource = Annotated[
    str, StringConstraints(min_length=1), AfterValidator(_check_source), LOCAL_PATH
]
S3Uri = Annotated[str, AfterValidator(_check_s3_uri)]
BucketName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"),
    AfterValidator(_check_bucket),
]
BuildArguments = Closed[
    dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
        Annotated[str, AfterValidator(_check_build_argument)],
    ]
]
ImageReference = Annotated[
    str, StringConstraints(min_length=1, max_length=255), AfterValidator(_check_image)
]


def url_problem(url: str) -> str | None:
    """Return the reason an http(s) URL cannot be an endpoint; None if it can."""
    if re.search(r"\s", url):
        return "it must not contain whitespace"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"not a URL: {error}"
    if not parts.hostname:
        return "the host is missing"
    if port == 0:
        return "port 0 is not a valid port"
    if "@" in parts.netloc:
        return "it must not contain a user or password (platform.credentials selects the keys)"
    return "it must not have a query or fragment" if parts.query or parts.fragment else None


def is_loopback_with_port(url: str | None) -> bool:
    """Return True if the URL is http on loopback with a port, where a platform can be started."""
    parts = urlsplit(url or "")
    try:
        loopback = (
            parts.hostname == "localhost" or ipaddress.IPv4Address(parts.hostname or "").is_loopback
        )
    except ipaddress.AddressValueError:
        return False
    return parts.scheme == "http" and loopback and parts.port is not None
