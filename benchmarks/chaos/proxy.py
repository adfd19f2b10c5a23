"""The network between a flow and the platform: forwards, records and disrupts HTTP calls.

Every call has a label: the operation of a JSON or query API (`CreateTrainingJob`), or for S3 the
method and the subject of the key (`PUT datasets`).
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from benchmarks.chaos.plan import CallFault, Lag, Moment
from nodesweep.aws.local_status import STATUS_PATH, proof_of, read_key

_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}
_UPSTREAM_SECONDS = 60.0
_DELAY_SECONDS = 0.7
_SWEEP_OBJECTS = (
    (re.compile(r"/config\.json$"), "record"),
    (re.compile(r"/owner\.json$"), "owner"),
    (re.compile(r"/stopped\.json$"), "stop-mark"),
    (re.compile(r"/claims/"), "claims"),
    (re.compile(r"/report/"), "report"),
    (re.compile(r"/request/request\.json$"), "request"),
    (re.compile(r"/verdict/verdict\.json$"), "verdict"),
    (re.compile(r"/jobs/"), "output"),
)


@dataclass(frozen=True)
class Call:
    """One call that reached the platform.

    Attributes:
        service: From the signature, e.g. sagemaker.
        began_at: Unix seconds.
        answered: True if the response was handed to the caller's connection.
    """

    label: str
    path: str
    body_bytes: int
    status: int
    answered: bool
    service: str = ""
    began_at: float = 0.0


Strike = Callable[[str, int, Moment], bool]
"""(label, number within the try, moment) -> True if the call is cut off here."""


class Proxy:
    """A proxy for one platform and one run, on loopback while entered; thread-safe."""

    def __init__(
        self,
        upstream: str,
        fault_of: Callable[[str, int], CallFault | None],
        lag: Lag | None = None,
        state_directory: Path | None = None,
        port: int = 0,
    ) -> None:
        """Create the proxy; with the platform's state folder it impersonates the platform.

        It then proves the key for its own endpoint, which is impossible without the folder.
        """
        place = urlparse(upstream)
        self.upstream: tuple[str, int] = (str(place.hostname), int(place.port or 80))
        self.fault_of = fault_of
        self.calls: list[Call] = []
        self.faults: Counter[str] = Counter()
        self.strike: Strike | None = None
        self._lag = lag or Lag()
        self._key = None if state_directory is None else read_key(state_directory)
        self._accepted_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._numbers_of_try: Counter[str] = Counter()
        self._down_until = 0.0
        self.is_over = threading.Event()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.proxy = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="proxy", daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self._server.shutdown()
        self._server.server_close()

    def begin_try(self, strike: Strike | None) -> None:
        """Count a try's calls from 1; `strike` is consulted at each call."""
        with self._lock:
            self._numbers_of_try.clear()
            self.strike = strike

    def go_down(self, seconds: float) -> None:
        """Fail all calls for this many seconds, including those in transit."""
        self._down_until = time.monotonic() + seconds

    def is_down(self) -> bool:
        """Return True during an outage."""
        return time.monotonic() < self._down_until

    def count(self, label: str) -> tuple[int, int]:
        """Return (number in the run, number in the try) of a new call."""
        with self._lock:
            self._numbers[label] += 1
            self._numbers_of_try[label] += 1
            return self._numbers[label], self._numbers_of_try[label]

    def note_fault(self, fault: str) -> None:
        """Count a fault."""
        with self._lock:
            self.faults[fault] += 1

    def note_call(self, call: Call) -> None:
        """Record a call."""
        with self._lock:
            self.calls.append(call)

    def proven(self, path: str, body: bytes) -> bytes:
        """Return a status response with the requested proof for the proxy's endpoint."""
        place = urlparse(path)
        nonce = parse_qs(place.query).get("nonce", [""])[0]
        if self._key is None or place.path != STATUS_PATH or not nonce:
            return body
        proof = proof_of(self._key.secret, self.endpoint, nonce)
        return json.dumps({**json.loads(body), "proof": proof}).encode()

    def late(self, label: str, body: bytes, answer: _Answer) -> _Answer:
        """Return the response of a platform that learns of a new job after plan.lag."""
        now = time.monotonic()
        if label not in _LATE or answer.status != 200:
            return answer
        asked, said = json.loads(body), json.loads(answer.body)
        name = _job_of(asked) or asked.get("ResourceArn", "").rpartition("/")[2]
        if label in ("CreateTrainingJob", "CreateProcessingJob"):
            self._accepted_at.setdefault(name, now)
        elif label == "ListTrainingJobs":
            jobs = said["TrainingJobSummaries"]
            shown = [
                job
                for job in jobs
                if not self._is_young(job["TrainingJobName"], self._lag.list_seconds, now)
            ]
            self.faults["late in a list"] += len(jobs) - len(shown)
            return answer.with_json({**said, "TrainingJobSummaries": shown})
        elif label == "ListTags" and self._is_young(name, self._lag.tags_seconds, now):
            self.note_fault("late tags")
            return answer.with_json({"Tags": []})
        return answer

    def is_unknown(self, label: str, body: bytes) -> bool:
        """Return True if the platform does not know the call's job yet."""
        if label not in _UNKNOWN:
            return False
        young = self._is_young(
            _job_of(json.loads(body)) or "", self._lag.describe_seconds, time.monotonic()
        )
        if young:
            self.note_fault("late description or stop")
        return young

    def _is_young(self, job_name: str, seconds: float, now: float) -> bool:
        return now < self._accepted_at.get(job_name, float("-inf")) + seconds

    def is_struck(self, label: str, number: int, moment: Moment) -> bool:
        """Return True if the call is cut off."""
        return self.strike is not None and self.strike(label, number, moment)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: Proxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that a killed process left behind."""


@dataclass(frozen=True)
class _Answer:
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes

    def with_json(self, body: Any) -> _Answer:
        """Return the response with another body."""
        return replace(self, body=json.dumps(body).encode())


_LATE = ("CreateTrainingJob", "CreateProcessingJob", "ListTrainingJobs", "ListTags")
_OF_TRAINING = "Requested resource not found."
_OF_PROCESSING = "Could not find requested job with name"
_UNKNOWN = {
    "DescribeTrainingJob": _OF_TRAINING,
    "StopTrainingJob": _OF_TRAINING,
    "DescribeProcessingJob": _OF_PROCESSING,
    "StopProcessingJob": _OF_PROCESSING,
}
"""Error message for an unknown job, by label."""


def _job_of(asked: Mapping[str, Any]) -> str | None:
    return asked.get("TrainingJobName") or asked.get("ProcessingJobName")


def _unknown(label: str) -> _Answer:
    body = json.dumps({"__type": "ValidationException", "message": _UNKNOWN[label]}).encode()
    return _Answer(400, "Bad Request", [("Content-Type", "application/x-amz-json-1.1")], body)


_PAGE = _Answer(
    403,
    "Forbidden",
    [("Content-Type", "text/html")],
    b"<!DOCTYPE html><html><body>Access denied by your network's policy</body></html>",
)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _handle(self) -> None:
        proxy, began_at = self.server.proxy, time.time()
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length or proxy.is_down():
            return self._hang_up()
        label = label_of(self.command, self.path, self.headers.get("X-Amz-Target", ""), body)
        in_run, in_try = proxy.count(label)
        if proxy.is_struck(label, in_try, "before") or proxy.is_down():
            return self._hang_up()
        fault = proxy.fault_of(label, in_run)
        if fault is not None:
            proxy.note_fault(fault)
        if fault == "dropped":
            return self._hang_up()
        if fault == "unanswered":
            proxy.is_over.wait(_UPSTREAM_SECONDS)
            return self._hang_up()
        if fault == "page":
            return self._send(_PAGE)
        if fault == "unavailable":
            return self._send(_unavailable(503, label))
        if fault == "delayed":
            time.sleep(_DELAY_SECONDS)
        if fault == "request_twice":
            self._forward(body)
        if proxy.is_unknown(label, body):
            return self._send(_unknown(label))
        answer = proxy.late(label, body, self._forward(body))
        struck = proxy.is_struck(label, in_try, "after")
        is_lost = struck or fault == "answer_lost" or proxy.is_down()
        is_spoilt = is_lost or fault == "late_500"
        service = service_of(self.headers.get("Authorization", ""))
        proxy.note_call(
            Call(label, self.path, length, answer.status, not is_spoilt, service, began_at)
        )
        if is_lost:
            return self._hang_up()
        if fault == "late_500":
            return self._send(_unavailable(500, label))
        self._send(answer, times=2 if fault == "answer_twice" else 1)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _forward(self, body: bytes) -> _Answer:
        upstream = http.client.HTTPConnection(
            *self.server.proxy.upstream, timeout=_UPSTREAM_SECONDS
        )
        try:
            headers = {
                key: value
                for key, value in self.headers.items()
                if key.lower() not in (*_HOP_BY_HOP, "expect")
            }
            upstream.request(
                self.command, self.path, body, {**headers, "Content-Length": str(len(body))}
            )
            answer = upstream.getresponse()
            kept = [
                (key, value) for key, value in answer.getheaders() if key.lower() not in _HOP_BY_HOP
            ]
            if self.command == "HEAD":
                kept.append(("Content-Length", answer.getheader("Content-Length") or "0"))
            said = self.server.proxy.proven(self.path, answer.read())
            return _Answer(answer.status, answer.reason, kept, said)
        finally:
            upstream.close()

    def _send(self, answer: _Answer, times: int = 1) -> None:
        """Send in one write; after a doubled response, close, so the next call cannot read it."""
        lines = [
            f"{self.protocol_version} {answer.status} {answer.reason}",
            *map(": ".join, answer.headers),
        ]
        if self.command != "HEAD":
            lines.append(f"Content-Length: {len(answer.body)}")
        head = "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")
        self.wfile.write((head + (b"" if self.command == "HEAD" else answer.body)) * times)
        self.close_connection = self.close_connection or times > 1

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing; the table is the output."""


def label_of(method: str, path: str, target: str, body: bytes) -> str:
    """Return a request's label, from its X-Amz-Target, its form's Action, or its S3 key."""
    if target:
        return target.rpartition(".")[2]
    place = urlparse(path)
    if method == "POST" and place.path == "/":
        return parse_qs(body.decode(errors="replace")).get("Action", ["POST"])[0]
    return f"{method} {_area(unquote(place.path))}"


def service_of(authorization: str) -> str:
    """Return the service in a signature's scope, KEY/DATE/REGION/SERVICE/aws4_request."""
    found = re.search(r"Credential=[^/]*/\d+/[^/]*/([^/]*)/", authorization)
    return found.group(1) if found else ""


def _area(path: str) -> str:
    """Return the subject of an S3 path /bucket/prefix/…, e.g. datasets, or a sweep's object."""
    parts = path.strip("/").split("/")
    if len(parts) < 3:
        return "bucket"
    if parts[2] != "sweeps":
        return parts[2]
    return next((name for pattern, name in _SWEEP_OBJECTS if pattern.search(path)), "sweeps")


def _unavailable(status: int, label: str) -> _Answer:
    """Return SlowDown or InternalError in the format of S3 or of the JSON services."""
    code = {500: "InternalError", 503: "SlowDown"}[status]
    if " " in label:
        body = f"<Error><Code>{code}</Code><Message>Please try again.</Message></Error>".encode()
        return _Answer(status, code, [("Content-Type", "application/xml")], body)
    code = {500: "InternalFailure", 503: "ServiceUnavailable"}[status]
    body = json.dumps({"__type": code, "message": "Please try again."}).encode()
    return _Answer(status, code, [("Content-Type", "application/x-amz-json-1.1")], body)
