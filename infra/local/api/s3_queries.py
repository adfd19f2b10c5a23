"""Refuses numbers in the query of an S3 request that are none, which moto answers as its own
failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from infra.local.api.protocol import ApiError, CredentialScope

_NUMBERS = frozenset({"max-keys", "max-parts", "max-uploads", "part-number-marker", "partNumber"})
_LARGEST = 2**31 - 1


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
