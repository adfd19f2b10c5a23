"""Filtering, sorting and pagination for List operations."""

from __future__ import annotations

import base64
import binascii
import json
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
        """Return a page of the summaries that match the request."""
        matching = [summary for summary in summaries if self._matches(summary, request)]
        found = self._sorted(matching, request)
        # The token contains the query, so that it cannot be used with a different query.
        query = {key: request[key] for key in request.keys() - {"NextToken", "MaxResults"}}
        start = _decode_token(request["NextToken"], query) if "NextToken" in request else 0
        end = start + request.get("MaxResults", _DEFAULT_PAGE_SIZE)
        answer: dict[str, Any] = {self.member: found[start:end]}
        if end < len(found):
            answer["NextToken"] = _encode_token(end, query)
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

    def _sorted(
        self, summaries: list[dict[str, Any]], request: dict[str, Any]
    ) -> list[dict[str, Any]]:
        fields = {"Name": self.name, "CreationTime": "CreationTime", "Status": self.status}
        field = fields[request.get("SortBy", "CreationTime")]
        descending = request.get("SortOrder", "Ascending") == "Descending"
        return sorted(
            summaries, key=lambda item: (item[field], item[self.name]), reverse=descending
        )


def _encode_token(position: int, query: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps([position, query], sort_keys=True).encode()).decode()


def _decode_token(token: str, query: dict[str, Any]) -> int:
    try:
        position, asked = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, TypeError, binascii.Error) as error:
        raise validation_error("Invalid pagination token.") from error
    if asked != query or not isinstance(position, int):
        raise ApiError(
            "ValidationException", "Invalid pagination token: it belongs to a different request."
        )
    return position
