"""Filtering, sorting and pagination for List operations."""

from __future__ import annotations

import base64
import binascii
import json
import operator
from dataclasses import dataclass
from typing import Any

from sagemaker_emulator.api.protocol import ApiError, validation_error

_DEFAULT_PAGE_SIZE = 10


@dataclass(frozen=True)
class Listing:
    """The names of members in a List operation: the list, and a job's name and status in it."""

    member: str
    name: str
    status: str

    def page(self, summaries: list[dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
        """Return a page of the summaries that match the request.

        The token contains the place of the page's last item in the order, so that no item is
        skipped or repeated if others are created or deleted between two pages.
        """
        fields = {"Name": self.name, "CreationTime": "CreationTime", "Status": self.status}
        field = fields[request.get("SortBy", "CreationTime")]

        def place(summary: dict[str, Any]) -> list[Any]:
            return [summary[field], summary[self.name]]

        is_descending = request.get("SortOrder", "Ascending") == "Descending"
        matching = [summary for summary in summaries if self._matches(summary, request)]
        found = sorted(matching, key=place, reverse=is_descending)
        # The token contains the query, so that it cannot be used with a different query.
        query = {key: request[key] for key in request.keys() - {"NextToken", "MaxResults"}}
        if "NextToken" in request:
            last = _decode_token(request["NextToken"], query)
            order = operator.lt if is_descending else operator.gt
            found = [summary for summary in found if order(place(summary), last)]
        size = request.get("MaxResults", _DEFAULT_PAGE_SIZE)
        answer: dict[str, Any] = {self.member: found[:size]}
        if size < len(found):
            answer["NextToken"] = _encode_token(place(found[size - 1]), query)
        return answer

    def _matches(self, summary: dict[str, Any], request: dict[str, Any]) -> bool:
        if request.get("NameContains", "").lower() not in summary[self.name].lower():
            return False
        if request.get("StatusEquals", summary[self.status]) != summary[self.status]:
            return False
        return all(
            request.get(f"{field}After", float("-inf"))
            < summary[field]
            < request.get(f"{field}Before", float("inf"))
            for field in ("CreationTime", "LastModifiedTime")
        )


def _encode_token(place: list[Any], query: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps([place, query], sort_keys=True).encode()).decode()


def _decode_token(token: str, query: dict[str, Any]) -> list[Any]:
    """Return the place in a token, [value, name], where the value is a time unless it is a text.

    Raises:
        ValidationException: If the token is malformed or belongs to a different query.
    """
    try:
        (value, name), asked = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, TypeError, binascii.Error) as error:
        raise validation_error("Invalid pagination token.") from error
    kind = int | float if query.get("SortBy", "CreationTime") == "CreationTime" else str
    if asked != query or not isinstance(value, kind) or not isinstance(name, str):
        raise ApiError(
            "ValidationException", "Invalid pagination token: it belongs to a different request."
        )
    return [value, name]
