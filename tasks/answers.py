"""What is demanded of a platform's answers: that they are AWS's, and that they come.

A proxy's error page, a login page, a redirect or some other program on the port is no answer of
AWS, and botocore does not look: it reads an HTML page as an empty result, or follows redirects in a
circle. And a platform that accepts every connection and never answers is waited for by boto3's
tries and Prefect's, one after the other, for most of an hour. A client of client_of() ends both:
whatever calls it gets ForeignAnswer, CallTimedOut (tasks/deadlines.py) or, by a deadline of all
calls together, PlatformSilent.
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

from nodesweep.scaling.secrets import hide_in_text
from nodesweep.tasks.deadlines import bound_calls, seconds_of_call
from nodesweep.tasks.errors import CallTimedOut, ForeignAnswer, PlatformSilent

logger = logging.getLogger("nodesweep.platform")
SAY_SECONDS = 120.0
"""How long an endpoint may leave every call unanswered before the run says so,
and how often it does.
"""
GIVE_UP_SECONDS = 900.0
"""After so long the call fails: longer than an outage of 10 minutes,
and shorter than the reaper's least grace.
"""
_FORGET_SECONDS = (
    120.0  # longer than any pause between two tries: who asks after that begins to wait
)
_ERROR_ROOTS = frozenset({"Error", "ErrorResponse", "Response"})
_EXCERPT_CHARACTERS = 80
_LAST_STATUS = 599  # of HTTP


class Silence:
    """How long an endpoint has left every call of this process unanswered;
    whoever asks it shares one.
    """

    def __init__(
        self,
        endpoint_url: str,
        say_seconds: float = SAY_SECONDS,
        give_up_seconds: float = GIVE_UP_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        where: str = "platform.endpoint_url",
    ) -> None:
        self._endpoint_url, self._where, self._monotonic = endpoint_url, where, monotonic
        self._say_seconds, self._give_up_seconds = say_seconds, give_up_seconds
        self._lock = threading.Lock()
        self._since: float | None = None
        self._failed_at: float | None = None
        self._say_at = 0.0

    def begin(self) -> None:
        """To be called as a request is sent."""
        with self._lock:
            now = self._monotonic()
            if self._since is None or (
                self._failed_at is not None and now - self._failed_at > _FORGET_SECONDS
            ):
                self._since, self._failed_at, self._say_at = now, None, now + self._say_seconds

    def end(self) -> None:
        """Something was answered, whatever it was."""
        with self._lock:
            self._since = self._failed_at = None

    def note_failure(self, operation: str, reason: BaseException) -> None:
        """A request got no answer. Says what is waited for;
        raises PlatformSilent once that has taken too long.
        """
        with self._lock:
            now = self._failed_at = self._monotonic()
            waited = now - (now if self._since is None else self._since)
            is_said = waited < self._say_seconds or now < self._say_at
            if not is_said:
                self._say_at = now + self._say_seconds
        if waited >= self._give_up_seconds:
            raise PlatformSilent(
                endpoint_url=self._endpoint_url, operation=operation, seconds=waited,
                where=self._where,
            ) from reason  # fmt: skip
        if not is_said:
            logger.warning(
                "no answer from %s for %.0f s; waiting for its answer to %s,"
                " and giving up after %.0f s",
                self._endpoint_url, waited, operation, self._give_up_seconds,
            )  # fmt: skip


_SILENCES: dict[str, Silence] = {}


def client_of(session: boto3.Session, service: str, **options: Any) -> Any:
    """A boto3 client that raises ForeignAnswer, CallTimedOut and PlatformSilent, which are
    BotoCoreErrors. The session is this client's alone; `options` are those of session.client().
    """

    def gave_up(client: Any, operation: str, seconds: float) -> Exception:
        error = CallTimedOut(
            endpoint_url=client.meta.endpoint_url, operation=operation, seconds=seconds,
            where=where,
        )  # fmt: skip
        _silence_of(client.meta.endpoint_url, where).note_failure(operation, error)
        return error

    bound_calls(session, gave_up)
    client = session.client(service, **options)
    where = where_to_look(options.get("endpoint_url"), service, client.meta.region_name)
    return _heed_answers(client, where)


def where_to_look(endpoint_url: str | None, service: str, region: str) -> str:
    """Return what names a platform: the config's field, else AWS's service."""
    return "platform.endpoint_url" if endpoint_url else f"{service} in {region}"


def _silence_of(endpoint_url: str, where: str) -> Silence:
    new = Silence(endpoint_url, SAY_SECONDS, GIVE_UP_SECONDS, where=where)
    return _SILENCES.setdefault(endpoint_url, new)


def _heed_answers(client: Any, where: str) -> Any:
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
            raise ForeignAnswer(answer=answer, **of_call) from exception

    events = client.meta.events
    events.register("before-send", sent)
    # With stars it comes before botocore's own for S3,
    # which takes any page for an error 500 of AWS.
    events.register("before-parse.*.*", answered)
    events.register("needs-retry", tried)
    events.register("after-call-error", failed)
    return client


def _check(endpoint_url: str, where: str, operation_model: Any, response: dict[str, Any]) -> None:
    """Raises ForeignAnswer. That of a gateway in trouble (5xx) becomes one that boto3 knows,
    and tries again.
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
        f", which begins {_excerpt(body.decode(errors='replace'))!r}"
        if isinstance(body, bytes) and body
        else ""
    )
    answer = f"{_excerpt(', '.join(parts))}, {problem}{begins}"
    raise ForeignAnswer(
        endpoint_url=endpoint_url,
        operation=operation_model.name,
        answer=answer,
        status=response["status_code"],
        where=where,
    )


def _excerpt(text: str) -> str:
    return hide_in_text(" ".join(text.split()))[:_EXCERPT_CHARACTERS]


def _problem(operation_model: Any, response: Mapping[str, Any]) -> str | None:
    """Why it is no answer of AWS, None where it may be one."""
    if response["status_code"] > _LAST_STATUS:
        return "no status of HTTP"
    headers = {name.lower() for name in response["headers"]}
    is_signed = any(name.startswith("x-amz") for name in headers)  # the request's id, at least
    body, is_error = response["body"], response["status_code"] >= 300
    if not body or (not is_error and _has_free_body(operation_model)):
        return None if is_signed or "etag" in headers else "without anything that AWS sends"
    protocol = operation_model.service_model.resolved_protocol
    if "cbor" in protocol:
        return "a page" if body.lstrip().startswith(b"<") else None
    if "json" in protocol:
        return _problem_of_json(body, is_error, is_signed, operation_model.output_shape)
    return _problem_of_xml(body, is_error, is_signed)


def _has_free_body(operation_model: Any) -> bool:
    """Whether a successful answer's body is the caller's own data, such as an object."""
    shape = operation_model.output_shape
    payload = shape.serialization.get("payload") if shape is not None else None
    return payload is not None and shape.members[payload].type_name in ("blob", "string")


def _problem_of_json(body: bytes, is_error: bool, is_signed: bool, shape: Any) -> str | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return "no JSON, or not all of it"
    if not isinstance(value, dict):
        return "no JSON object"
    if is_signed:
        return None
    if is_error:
        return None if value.keys() & {"__type", "code", "Code"} else "no error of AWS"
    if shape is None or not shape.members:
        return None
    named = {member.serialization.get("name", name) for name, member in shape.members.items()}
    missing = sorted(set(shape.required_members) - value.keys())
    return (
        None
        if value.keys() & named and not missing
        else f"no answer to {shape.name.removesuffix('Response')}"
    )


def _problem_of_xml(body: bytes, is_error: bool, is_signed: bool) -> str | None:
    try:
        root = ElementTree.fromstring(body).tag.rpartition("}")[2]
    except ElementTree.ParseError:
        return "no XML, or not all of it"
    if root.lower() == "html" or (is_error and not is_signed and root not in _ERROR_ROOTS):
        return "a page"
    return None
