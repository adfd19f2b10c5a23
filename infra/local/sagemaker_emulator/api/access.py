"""Authenticates requests with two access keys in a file that only its owner can read.

The platform runs the programs that it receives, and any user of the machine can reach its port, so
every request must be signed with a key from `aws-credentials` in the state folder (an AWS shared
credentials file). The key of the profile `default` may call everything and obtain more keys
(AssumeRole, IAM users). The key of the profile `node`, which training jobs get, may only call S3,
logs and metrics. Every signature is verified, since access key ids are not secret: presigned URLs
contain them.
"""

from __future__ import annotations

import configparser
import hmac
import io
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from werkzeug.wrappers import Response

from sagemaker_emulator.api.addressing import received_address
from sagemaker_emulator.api.checksums import sign_chunks_as
from sagemaker_emulator.api.dialect import protocol_of, wrapped_error
from sagemaker_emulator.api.protocol import CBOR_PATH, SCOPE, authorization, read_body
from sagemaker_emulator.interfaces import AccessKey
from sagemaker_emulator.server.contract import CREDENTIALS_FILE, proof_of
from sagemaker_emulator.state.files import (
    DamagedFile,
    UnsafeFile,
    read_secret_file,
    write_atomically,
)

_NEW_KEYS = "remove it and restart, which creates new keys; nothing else is lost"
_PRESIGNED = re.compile(SCOPE)
_DATE_FORMAT = "%Y%m%dT%H%M%SZ"
_NODE_SERVICES = frozenset({"s3", "logs", "monitoring"})
_NODE_TARGETS = frozenset({"Logs_20140328", "GraniteServiceVersion20100801"})
_SIGNED_SECONDS = 900.0
"""Maximum difference between the signed time and now, as on AWS. Recorded requests expire."""
_LEAST_KEY_LENGTH = 16
"""Minimum length of an access key id (IAM's CreateAccessKey), also applied to secrets.

This detects a truncated file, whose last secret could otherwise have one character.
"""


@dataclass(frozen=True)
class AccessKeys:
    """The platform's keys: `user` may call everything, `node` only S3, logs and metrics."""

    user: AccessKey
    node: AccessKey


@dataclass(frozen=True)
class _Claim:
    """The identity, region, signed headers and date that a request claims (Signature Version 4)."""

    key_id: str
    signature: str
    service: str
    region: str
    headers: tuple[str, ...]
    date: str
    signed_at: float
    """`date` in Unix seconds."""
    session_token: str | None = None
    expires_at: float | None = None
    """Expiry of a presigned URL, in Unix seconds."""

    @property
    def is_presigned(self) -> bool:
        return self.expires_at is not None


def access_keys(state_dir: Path) -> AccessKeys:
    """Return the keys of a state folder, or generate random keys if it has none.

    Raises:
        DamagedFile: If the credentials file is damaged, or other users may access it.
    """
    path = state_dir / CREDENTIALS_FILE
    try:
        return _read_keys(path)
    except FileNotFoundError:
        parser = configparser.RawConfigParser()
        for profile, prefix in (("default", "LOCALUSER"), ("node", "LOCALNODE")):
            key_id, secret = prefix + secrets.token_hex(16).upper(), secrets.token_urlsafe(30)
            parser[profile] = {"aws_access_key_id": key_id, "aws_secret_access_key": secret}
        text = io.StringIO()
        parser.write(text)
        write_atomically(path, text.getvalue().encode())  # mode 600
    return _read_keys(path)


def _read_keys(path: Path) -> AccessKeys:
    """Return the keys in a credentials file.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFile: If the file cannot be used.
    """
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(read_secret_file(path, _NEW_KEYS))
        user, node = (
            AccessKey(parser[name]["aws_access_key_id"], parser[name]["aws_secret_access_key"])
            for name in ("default", "node")
        )
        if min(map(len, (user.id, user.secret, node.id, node.secret))) < _LEAST_KEY_LENGTH:
            raise ValueError(f"a key has fewer than {_LEAST_KEY_LENGTH} characters")
    except (FileNotFoundError, UnsafeFile):
        raise
    except (OSError, ValueError, KeyError, configparser.Error) as error:
        reason = " ".join(str(error).split())
        raise DamagedFile(path, f"{type(error).__name__}: {reason}", _NEW_KEYS) from error
    return AccessKeys(user, node)


class Gate:
    """Refuses requests without a valid key by returning the error that the service would return."""

    def __init__(
        self,
        keys: AccessKeys,
        own_key_id: str,
        issued: Callable[[str], AccessKey | None] = lambda key_id: None,
    ) -> None:
        """Set up the gate.

        Args:
            keys: The keys of the state folder.
            own_key_id: The key id of the platform's in-process clients, which never leaves the
             process.
            issued: Returns the key with this id if the platform has issued it, else None.
        """
        self._keys = {key.id: key for key in (keys.user, keys.node)}
        self._node_id = keys.node.id
        self._secret = keys.user.secret
        self._own_key_id = own_key_id
        self._issued = issued

    def proof(self, endpoint: str, nonce: str) -> str:
        """Return a proof that the platform at `endpoint` knows the user's key."""
        return proof_of(self._secret, endpoint, nonce)

    def refusal(self, environ: dict[str, Any]) -> Response | None:
        """Return the error response to a request, or None if the request is allowed."""
        claim = _claim(environ)
        if claim is None:
            problem = "old signature" if _is_of_version_2(environ) else "no key"
            return _error_response(environ, claim, problem)
        if hmac.compare_digest(claim.key_id.encode(), self._own_key_id.encode()):
            return None
        key = self._keys.get(claim.key_id) or self._issued(claim.key_id)
        if key is None or (claim.session_token or None) != key.session_token:
            return _error_response(environ, claim, "unknown key")
        now = datetime.now(UTC).timestamp()
        if not claim.is_presigned and abs(now - claim.signed_at) > _SIGNED_SECONDS:
            return _error_response(environ, claim, "another time")
        signature = _signature(environ, claim, key)
        if not _names_all(environ, claim) or not hmac.compare_digest(
            signature.encode(), claim.signature.encode()
        ):
            return _error_response(environ, claim, "wrong signature")
        if not claim.is_presigned:
            sign_chunks_as(
                *(environ, key.secret, claim.date, signature),
                region=claim.region,
                service=claim.service,
            )
        if key.expires_at is not None and key.expires_at < now:
            return _error_response(environ, claim, "expired token")
        if claim.expires_at is not None and claim.expires_at < now:
            return _error_response(environ, claim, "expired")
        is_open = (not claim.is_presigned or _reads_an_object(environ, claim)) and (
            claim.key_id != self._node_id or _is_for_nodes(environ, claim)
        )
        return None if is_open else _error_response(environ, claim, "denied")


def _claim(environ: Mapping[str, Any]) -> _Claim | None:
    """Return the claim in the Authorization header or, without this header, in a presigned URL.

    Return None if the claim is missing or incomplete.
    """
    if environ.get("HTTP_AUTHORIZATION", ""):
        found, date = authorization(environ), environ.get("HTTP_X_AMZ_DATE", "")
        if found is None or (signed_at := _unix_seconds(date)) is None:
            return None
        return _Claim(
            key_id=found["id"],
            signature=found["signature"],
            service=found["service"],
            region=found["region"],
            headers=tuple(found["headers"].split(";")),
            date=date,
            signed_at=signed_at,
            session_token=environ.get("HTTP_X_AMZ_SECURITY_TOKEN"),
        )
    query = {name: values[0] for name, values in parse_qs(environ.get("QUERY_STRING", "")).items()}
    try:
        if found := _PRESIGNED.fullmatch(query.get("X-Amz-Credential", "")):
            signed_at = _unix_seconds(query["X-Amz-Date"])
            if signed_at is None:
                return None
            return _Claim(
                key_id=found["id"],
                signature=query["X-Amz-Signature"],
                service=found["service"],
                region=found["region"],
                headers=tuple(query["X-Amz-SignedHeaders"].split(";")),
                date=query["X-Amz-Date"],
                signed_at=signed_at,
                session_token=query.get("X-Amz-Security-Token"),
                expires_at=signed_at + float(query["X-Amz-Expires"]),
            )
    except (KeyError, ValueError):
        return None
    return None


def _unix_seconds(date: str) -> float | None:
    try:
        return datetime.strptime(date, _DATE_FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _is_of_version_2(environ: Mapping[str, Any]) -> bool:
    """Return True for Signature Version 2, boto3's default for presigned URLs in older regions.

    This version does not sign the Host header.
    """
    return str(environ.get("HTTP_AUTHORIZATION", "")).startswith("AWS ") or (
        "AWSAccessKeyId" in parse_qs(environ.get("QUERY_STRING", ""))
    )


def _names_all(environ: Mapping[str, Any], claim: _Claim) -> bool:
    """Return True if the signature covers the host and, for S3, the hash of the body."""
    is_hashed = claim.service == "s3" and not claim.is_presigned
    needed = {"host", "x-amz-content-sha256"} if is_hashed else {"host"}
    return needed <= set(claim.headers)


def _signature(environ: dict[str, Any], claim: _Claim, key: AccessKey) -> str:
    host, uri = received_address(environ)
    path, _, query = uri.partition("?")
    credentials = Credentials(key.id, key.secret, key.session_token)
    signed = "&".join(part for part in query.split("&") if not part.startswith("X-Amz-Signature="))
    headers = {name: host if name == "host" else _header(environ, name) for name in claim.headers}
    is_s3 = claim.service == "s3"
    body = b"" if is_s3 or claim.is_presigned else read_body(environ)
    url = f"http://{host}{path}?{signed}"
    request = AWSRequest(environ["REQUEST_METHOD"], url, headers, body)
    request.context["timestamp"] = claim.date
    signer_class = (
        S3SigV4QueryAuth if claim.is_presigned and is_s3 else S3SigV4Auth if is_s3 else SigV4Auth
    )
    signer: Any = signer_class(credentials, claim.service, claim.region)
    return str(
        signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    )


def _header(environ: Mapping[str, Any], name: str) -> str:
    variable = name.upper().replace("-", "_")
    plain = variable in ("CONTENT_TYPE", "CONTENT_LENGTH")
    return str(environ.get(variable if plain else f"HTTP_{variable}", ""))


def _reads_an_object(environ: Mapping[str, Any], claim: _Claim) -> bool:
    """Return True if a presigned URL only reads from S3 (GET or HEAD).

    Nothing else is allowed, since the signature covers neither the target header nor the body,
    which can both select a different operation.
    """
    has_body = (
        environ.get("CONTENT_LENGTH") not in (None, "", "0") or "HTTP_TRANSFER_ENCODING" in environ
    )
    names_call = (
        "HTTP_X_AMZ_TARGET" in environ or CBOR_PATH.match(environ.get("PATH_INFO", "")) is not None
    )
    reads = claim.service == "s3" and environ.get("REQUEST_METHOD") in ("GET", "HEAD")
    return reads and not has_body and not names_call and not _is_for_s3_control(environ)


def _is_for_nodes(environ: Mapping[str, Any], claim: _Claim) -> bool:
    """Return True if a node may make this call.

    The signed service and the target header are both checked, since they determine together which
    service receives the request.
    """
    prefix = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[0]
    is_of_theirs = claim.service in _NODE_SERVICES and (not prefix or prefix in _NODE_TARGETS)
    return is_of_theirs and not _is_for_s3_control(environ)


def _is_for_s3_control(environ: Mapping[str, Any]) -> bool:
    """Return True for S3 Control, which changes account settings and is signed like S3.

    moto tells it apart from S3 by its path or host.
    """
    host, _ = received_address(environ)
    path = str(environ.get("PATH_INFO", ""))
    return path.startswith("/v20180820/") or "s3-control" in host


_NO_KEY = "Request is missing Authentication Token"
_OLD_TOKEN = "The security token included in the request is expired"
_BAD_TOKEN = "The security token included in the request is invalid."
_BAD_SIGNATURE = (
    "The request signature we calculated does not match the signature you provided. Check your AWS"
    " Secret Access Key and signing method."
)
_OLD_SIGNATURE = (
    "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256;"
    " with boto3: Config(signature_version='s3v4')."
)
_SKEWED = "The difference between the request time and the current time is too large."
_DENIED = (
    "A presigned URL can only read from S3 (GET or HEAD, without a body or X-Amz-Target), and a"
    " training job's access key can only call S3, CloudWatch Logs and CloudWatch metrics."
)
_WORDS = {
    ("s3", "no key"): ("AccessDenied", "Access Denied"),
    ("s3", "old signature"): ("InvalidRequest", _OLD_SIGNATURE),
    ("s3", "another time"): ("RequestTimeTooSkewed", _SKEWED),
    ("s3", "unknown key"): (
        "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."
    ),
    ("s3", "wrong signature"): ("SignatureDoesNotMatch", _BAD_SIGNATURE),
    ("s3", "expired"): ("AccessDenied", "Request has expired"),
    ("s3", "expired token"): ("ExpiredToken", "The provided token has expired."),
    ("s3", "denied"): ("AccessDenied", "Access Denied"),
    ("json", "no key"): ("MissingAuthenticationTokenException", _NO_KEY),
    ("json", "old signature"): ("IncompleteSignatureException", _OLD_SIGNATURE),
    ("json", "another time"): ("InvalidSignatureException", f"Signature expired. {_SKEWED}"),
    ("json", "unknown key"): ("UnrecognizedClientException", _BAD_TOKEN),
    ("json", "wrong signature"): ("InvalidSignatureException", _BAD_SIGNATURE),
    ("json", "expired"): ("InvalidSignatureException", "Signature expired"),
    ("json", "expired token"): ("ExpiredTokenException", _OLD_TOKEN),
    ("json", "denied"): ("AccessDeniedException", _DENIED),
    ("query", "no key"): ("MissingAuthenticationToken", _NO_KEY),
    ("query", "old signature"): ("IncompleteSignature", _OLD_SIGNATURE),
    ("query", "another time"): ("RequestExpired", _SKEWED),
    ("query", "unknown key"): ("InvalidClientTokenId", _BAD_TOKEN),
    ("query", "wrong signature"): ("SignatureDoesNotMatch", _BAD_SIGNATURE),
    ("query", "expired"): ("RequestExpired", "Request has expired"),
    ("query", "expired token"): ("ExpiredToken", _OLD_TOKEN),
    ("query", "denied"): ("AccessDenied", _DENIED),
}  # fmt: skip
"""Error code and message by kind of service and problem.

They are AWS's, except for the message `_DENIED` and the advice about boto3 in `_OLD_SIGNATURE`.
"""
_EC2_WORDS = ("AuthFailure", "AWS was not able to validate the provided access credentials")
_WORDS_OF = {"s3": "s3", "query": "query", "rest-xml": "query"}
"""The kind of service in `_WORDS` by protocol, which is "json" for all other protocols."""
_STATUS = {"json": 400, "cbor": 400, "ec2": 401}


def _error_response(environ: dict[str, Any], claim: _Claim | None, problem: str) -> Response:
    protocol = protocol_of(environ, claim.service if claim is not None else None)
    code, message = (
        _EC2_WORDS if protocol == "ec2" else _WORDS[_WORDS_OF.get(protocol, "json"), problem]
    )
    return wrapped_error(environ, protocol, code, message, _STATUS.get(protocol, 403))
