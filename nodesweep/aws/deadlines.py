"""Deadlines for every platform call, and for every read of an object's body.

boto3's timeout covers one wait on the socket and restarts with every byte, so a response that
trickles in is read forever. Each call therefore runs in a separate thread, which is awaited for
as long as it makes progress; an abandoned call sends nothing more.
"""

from __future__ import annotations

import contextvars
import inspect
import threading
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import boto3
from botocore.exceptions import ReadTimeoutError, ResponseStreamingError
from botocore.response import StreamingBody

READ_TIMEOUTS_PER_ANSWER = 3
"""Deadline of a whole response in read timeouts: 180 s, or 60 s for quick clients."""
LONG_SECONDS = {"CompleteMultipartUpload": 900.0}
"""Longer deadlines, in seconds by operation.

S3 sends white space for "several minutes" while it assembles a large object (S3 API reference,
CompleteMultipartUpload).
"""
PIECE_BYTES = 1 << 18
"""Bytes of a streamed body that must arrive within one deadline."""
_SLICE_SECONDS = 1.0  # maximum time until a wait notices that its deadline has changed

GaveUp = Callable[[Any, str, float], Exception]
"""Function that turns (client, operation, seconds waited) into the exception to raise."""


class _Call:
    """One call in its own thread.

    Its deadline starts with the first request, once credentials are resolved, and restarts with
    each attempt and each block of a request body.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.is_given_up = seconds, False
        self._began: float | None = None
        self._until: float | None = None
        self._ended = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def extend(self) -> None:
        """Restart the deadline."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        self._until = now + self.seconds

    @property
    def waited_seconds(self) -> float:
        """Seconds since the first request was sent."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def run(self, send: Callable[[], Any], gave_up: Callable[[float], Exception]) -> Any:
        """Return or raise the result of `send`; raise gave_up(seconds waited) at the deadline."""
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._send, send), name="platform-call", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or the thread limit is reached
            return send()
        try:
            while not self._ended.wait(self._slice_seconds()):
                if self._until is not None and time.monotonic() >= self._until:
                    raise gave_up(self.waited_seconds)
        except BaseException:
            self.is_given_up = True
            raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # breaks the cycle of exception and frames
        return self._value

    def _slice_seconds(self) -> float:
        left = self.seconds if self._until is None else self._until - time.monotonic()
        return min(max(0.0, left), _SLICE_SECONDS)

    def _send(self, send: Callable[[], Any]) -> None:
        _CURRENT.set(self)
        try:
            self._value = send()
        except BaseException as error:
            self._error = error
        self._ended.set()


_CURRENT: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("call", default=None)


def seconds_of_call() -> float:
    """Return the seconds that the current call has waited; 0 outside a call."""
    call = _CURRENT.get()
    return 0.0 if call is None else call.waited_seconds


def bound_calls(session: boto3.Session, gave_up: GaveUp) -> None:
    """Give every call of the session's future clients a deadline, unless that is done already.

    A call past its deadline raises the exception that `gave_up` returns; a read of a streamed body
    raises ResponseStreamingError.
    """

    def bound(class_attributes: dict[str, Any], **_: Any) -> None:
        for name, method in list(class_attributes.items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                class_attributes[name] = _bounded(method, gave_up)

    # With IDs, a second call changes nothing.
    session.events.register("creating-client-class", bound, "nodesweep-bound")
    # Last, because adaptive retries wait for their turn in this event.
    session.events.register_last("before-send", _before_send, "nodesweep-before-send")
    session.events.register("after-call", _bound_body, "nodesweep-bound-body")


def _bounded(method: Callable[..., Any], gave_up: GaveUp) -> Callable[..., Any]:
    @wraps(method)
    def bounded(client: Any, *args: Any, **kwargs: Any) -> Any:
        operation = client.meta.method_to_api_mapping.get(method.__name__)
        if operation is None:  # upload_file and similar methods, which make many calls
            return method(client, *args, **kwargs)
        seconds = client.meta.config.read_timeout * READ_TIMEOUTS_PER_ANSWER
        call = _Call(max(seconds, LONG_SECONDS.get(operation, 0.0)))
        return call.run(
            partial(method, client, *args, **kwargs), partial(gave_up, client, operation)
        )

    return bounded


def _before_send(request: Any, **_: Any) -> None:
    """Begin an attempt of the current call, and restart its deadline.

    Raises:
        TimeoutError: the call was abandoned; nobody would own a job that it starts now.
    """
    call = _CURRENT.get()
    if call is None:
        return
    if call.is_given_up:
        raise TimeoutError("the call was abandoned")
    call.extend()
    if hasattr(request.body, "read"):
        request.body = _Sent(request.body, call)


class _Sent:
    """A request body; each block read from it counts as progress."""

    def __init__(self, body: Any, call: _Call) -> None:
        self._body, self._call = body, call

    def read(self, *size: int) -> Any:
        """Read a block and restart the call's deadline."""
        self._call.extend()
        return self._body.read(*size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)


def _bound_body(http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
    call = _CURRENT.get()
    if call is None or not model.has_streaming_output:
        return
    name = model.output_shape.serialization["payload"]
    if hasattr(parsed.get(name), "read"):
        # The wrapped body verifies its length and checksum.
        parsed[name] = StreamingBody(_Received(parsed[name], http_response.url, call.seconds), None)


class _Received:
    """A response body with a deadline for each piece."""

    def __init__(self, body: Any, url: str, seconds: float) -> None:
        self._body, self._url, self._seconds = body, url, seconds

    def read(self, amt: int | None = None) -> bytes:
        """Return `amt` bytes, fewer at the end; all bytes by default."""
        if amt is not None and 0 <= amt <= PIECE_BYTES:
            return self._piece(amt)
        pieces, left = [], amt if amt is not None and amt >= 0 else None
        while left is None or left > 0:
            size = PIECE_BYTES if left is None else min(left, PIECE_BYTES)
            pieces.append(self._piece(size))
            if len(pieces[-1]) < size:
                break
            left = left and left - size
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, and return the number of bytes read."""
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def _piece(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end of the body, from one thread."""

        def gave_up(seconds: float) -> Exception:
            slow = f"{self._url} sent fewer than {size:,} bytes within {seconds:.0f} s"
            return ResponseStreamingError(error=slow)

        call = _Call(self._seconds)
        call.extend()
        try:
            return bytes(call.run(partial(self._read_fully, size), gave_up))
        except ReadTimeoutError as error:  # botocore's error does not name the URL
            raise gave_up(call.waited_seconds) from error

    def _read_fully(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while (left := size - sum(map(len, pieces))) > 0 and (piece := self._body.read(left)):
            pieces.append(piece)
        return b"".join(pieces)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)
