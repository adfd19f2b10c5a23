"""Check that a platform's responses come from AWS, and that they arrive.

botocore reads a proxy's or a login page as an empty result, and follows redirects in circles; with
a platform that accepts connections and never answers, boto3's and Prefect's retries take most of an
hour. Calls of a client made by client_of() raise ForeignResponse, CallTimedOut
(nodesweep/aws/deadlines.py) or, past a deadline shared by all calls to an endpoint,
PlatformUnresponsive.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

import boto3
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError
from botocore.parsers import ResponseParserError

from nodesweep.aws.deadlines import bound_calls, seconds_of_call
from nodesweep.errors import CallTimedOut, ForeignResponse, PlatformUnresponsive
from nodesweep.scaling.secrets import hide_in_text

logger = logging.getLogger("nodesweep.platform")
WARN_SECONDS = 120.0
"""Seconds without any response before a warning is logged, and between two warnings."""
GIVE_UP_SECONDS = 900.0
"""Seconds without any response before a call fails.

It is longer than an outage of 10 minutes, and shorter than the reaper's shortest grace period.
"""
_FORGET_SECONDS = 120.0  # longer than any pause between attempts; a later call starts a new wait
_ERROR_ROOTS = frozenset({"Error", "ErrorResponse", "Response"})
_EXCERPT_CHARACTERS = 80
_LAST_STATUS = 599  # the highest HTTP status
_PAGE = "an HTML or XML page"


class Silence:
    """The time for which an endpoint has left every call of this process unanswered.

    All clients of an endpoint share one instance.
    """

    def __init__(
        self,
        endpoint_url: str,
        warn_seconds: float = WARN_SECONDS,
        give_up_seconds: float = GIVE_UP_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        where: str = "platform.endpoint_url",
    ) -> None:
        self._endpoint_url, self._where, self._monotonic = endpoint_url, where, monotonic
        self._warn_seconds, self._give_up_seconds = warn_seconds, give_up_seconds
        self._lock = threading.Lock()
        self._since: float | None = None
        self._failed_at: float | None = None
        self._warn_at = 0.0

    def begin(self) -> None:
        """Record that a request is about to be sent."""
        with self._lock:
            now = self._monotonic()
            if self._since is None or (
                self._failed_at is not None and now - self._failed_at > _FORGET_SECONDS
            ):
                self._since, self._failed_at, self._warn_at = now, None, now + self._warn_seconds

    def end(self) -> None:
        """Record that a response has arrived, regardless of its content."""
        with self._lock:
            self._since = self._failed_at = None

    def note_failure(self, operation: str, reason: BaseException) -> None:
        """Record that a request got no response, and log a warning when one is due.

        Raises:
            PlatformUnresponsive: the endpoint has been silent for the limit, 900 s by default.
        """
        with self._lock:
            now = self._failed_at = self._monotonic()
            waited = now - (now if self._since is None else self._since)
            is_warned = waited < self._warn_seconds or now < self._warn_at
            if not is_warned:
                self._warn_at = now + self._warn_seconds
        if waited >= self._give_up_seconds:
            raise PlatformUnresponsive(
                endpoint_url=self._endpoint_url, operation=operation, seconds=waited,
                where=self._where,
            ) from reason  # fmt: skip
        if not is_warned:
            logger.warning(
                "no response from %s for %.0f s; still waiting for %s, giving up after %.0f s",
                self._endpoint_url, waited, operation, self._give_up_seconds,
            )  # fmt: skip


_SILENCES: dict[str, Silence] = {}


def client_of(session: boto3.Session, service: str, **options: Any) -> Any:
    """Return a boto3 client that verifies responses and enforces deadlines.

    Its calls raise ForeignResponse, CallTimedOut and PlatformUnresponsive, which are
    BotoCoreErrors.

    Args:
        session: used only by clients of this function that all, or none, have an endpoint_url.
        service: the AWS service's boto3 name.
        options: keyword arguments of session.client().
    """

    def where(client: Any) -> str:
        name = client.meta.service_model.service_name
        return setting_to_check(options.get("endpoint_url"), name, client.meta.region_name)

    def gave_up(client: Any, operation: str, seconds: float) -> Exception:
        error = CallTimedOut(
            endpoint_url=client.meta.endpoint_url, operation=operation, seconds=seconds,
            where=where(client),
        )  # fmt: skip
        _silence_of(client.meta.endpoint_url, where(client)).note_failure(operation, error)
        return error

    bound_calls(session, gave_up)
    client = session.client(service, **options)
    return _verify_responses(client, where(client))


def setting_to_check(endpoint_url: str | None, service: str, region: str) -> str:
    """Return the setting that an error message should name: a config field, or an AWS service."""
    return "platform.endpoint_url" if endpoint_url else f"{service} in {region}"


def _silence_of(endpoint_url: str, where: str) -> Silence:
    new = Silence(endpoint_url, WARN_SECONDS, GIVE_UP_SECONDS, where=where)
    return _SILENCES.setdefault(endpoint_url, new)


def _verify_responses(client: Any, where: str) -> Any:
    endpoint_url = str(client.meta.endpoint_url)
    silence = _silence_of(endpoint_url, where)

    def sent(**_: Any) -> None:
        silence.begin()

    def answered(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
        silence.end()
        _check(endpoint_url, where, operation_model, response_dict)

    def tried(operation: Any, caught_exception: BaseException | None, **_: Any) -> None:
        if caught_exception is not None:
            silence.note_failure(operation.name, caught_exception)

    def failed(exception: BaseException, event_name: str, **_: Any) -> None:
        of_call = {
            "endpoint_url": endpoint_url, "operation": event_name.rpartition(".")[2],
            "where": where,
        }  # fmt: skip
        if isinstance(exception, ReadTimeoutError | ConnectTimeoutError):
            raise CallTimedOut(seconds=seconds_of_call(), **of_call) from exception
        if isinstance(exception, ResponseParserError):
            answer = f"it can't be read ({_excerpt(str(exception))})"
            raise ForeignResponse(answer=answer, **of_call) from exception

    events = client.meta.events
    events.register("before-send", sent)
    # The wildcards make it run before botocore's own S3 handler, which takes any page for an AWS
    # error 500.
    events.register("before-parse.*.*", answered)
    events.register("needs-retry", tried)
    events.register("after-call-error", failed)
    return client


def _check(endpoint_url: str, where: str, operation_model: Any, response: dict[str, Any]) -> None:
    """Raise ForeignResponse unless the response comes from AWS.

    Empty the body of a gateway's 5xx page instead: boto3 then sees a server error and retries.
    """
    problem = _problem(operation_model, response)
    if problem is None:
        return
    if 500 <= response["status_code"] <= _LAST_STATUS:
        response["body"] = b""
        return
    headers = {name.lower(): value for name, value in response["headers"].items()}
    parts = [f"HTTP {response['status_code']}", str(headers.get("content-type", "no content type"))]
    if "location" in headers:
        parts.append(f"a redirect to {headers['location']}")
    body = response["body"]
    begins = (
        f", body begins {_excerpt(body.decode(errors='replace'))!r}"
        if isinstance(body, bytes) and body
        else ""
    )
    answer = f"{_excerpt(', '.join(parts))}, {problem}{begins}"
    raise ForeignResponse(
        endpoint_url=endpoint_url,
        operation=operation_model.name,
        answer=answer,
        status=response["status_code"],
        where=where,
    )


def _excerpt(text: str) -> str:
    return hide_in_text(" ".join(text.split()))[:_EXCERPT_CHARACTERS]


def _problem(operation_model: Any, response: Mapping[str, Any]) -> str | None:
    """Return why the response cannot come from AWS; None if it can."""
    if response["status_code"] > _LAST_STATUS:
        return "invalid HTTP status"
    headers = {name.lower() for name in response["headers"]}
    is_signed = any(name.startswith("x-amz") for name in headers)  # at least the request ID
    body, is_error = response["body"], response["status_code"] >= 300
    if not body or (not is_error and _has_free_body(operation_model)):
        return None if is_signed or "etag" in headers else "no AWS headers"
    protocol = operation_model.service_model.resolved_protocol
    if "cbor" in protocol:
        return _PAGE if body.lstrip().startswith(b"<") else None
    if "json" in protocol:
        return _problem_of_json(body, is_error, is_signed, operation_model.output_shape)
    return _problem_of_xml(body, is_error, is_signed)


def _has_free_body(operation_model: Any) -> bool:
    """Return True if a successful response's body is the caller's own data, such as an object."""
    shape = operation_model.output_shape
    payload = shape.serialization.get("payload") if shape is not None else None
    return payload is not None and shape.members[payload].type_name in ("blob", "string")


def _problem_of_json(body: bytes, is_error: bool, is_signed: bool, shape: Any) -> str | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return "invalid or truncated JSON"
    if not isinstance(value, dict):
        return "not a JSON object"
    if is_signed:
        return None
    if is_error:
        return None if value.keys() & {"__type", "code", "Code"} else "not an AWS error"
    if shape is None or not shape.members:
        return None
    named = {member.serialization.get("name", name) for name, member in shape.members.items()}
    missing = sorted(set(shape.required_members) - value.keys())
    return (
        None
        if value.keys() & named and not missing
        else f"not a response to {shape.name.removesuffix('Response')}"
    )


def _problem_of_xml(body: bytes, is_error: bool, is_signed: bool) -> str | None:
    try:
        root = ElementTree.fromstring(body).tag.rpartition("}")[2]
    except ElementTree.ParseError:
        return "invalid or truncated XML"
    if root.lower() == "html" or (is_error and not is_signed and root not in _ERROR_ROOTS):
        return _PAGE
    return None
