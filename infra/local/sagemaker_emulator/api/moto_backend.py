"""The moto server application, configured for the platform.

`moto_patches` lists the changes to moto.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, cast
from wsgiref.types import StartResponse, WSGIApplication

from moto.core.base_backend import BackendDict
from moto.core.model_instances import reset_model_data
from moto.iam.models import iam_backends
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3.models import s3_backends
from moto.sts.models import sts_backends

from sagemaker_emulator.api.moto_patches import apply_patches
from sagemaker_emulator.interfaces import AccessKey

TRAINING_ROLE = "nodesweep-training"
"""Name of the predefined role, which configs/local.yaml and the other local configs use."""
_TRUST = {
    "Effect": "Allow",
    "Principal": {"Service": "sagemaker.amazonaws.com"},
    "Action": "sts:AssumeRole",
}
_MOTO_OWN_PATHS = ("/moto-api", "/favicon.ico", "/latest/meta-data/", "/latest/api/")
_MOTO_OWN_SERVICES = ("moto_api", "instance_metadata")
_ALL = {"Effect": "Allow", "Action": "*", "Resource": "*"}

apply_patches()


def moto_application(account_id: str) -> WSGIApplication:
    """Return a WSGI application with moto's services in this account.

    Calls to services that moto lacks raise NotImplementedError. The state of moto is global to the
    process.
    """
    dispatcher = cast(WSGIApplication, _Dispatcher(_create_backend_app))

    def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        environ["HTTP_X_MOTO_ACCOUNT_ID"] = account_id
        return dispatcher(environ, start_response)

    return application


class _Dispatcher(DomainDispatcherApplication):
    """Routes requests by the signed service, even if moto reserves their path for itself.

    moto's control API can reset every service and shows all keys, and its instance metadata service
    hands out credentials. Here, their paths are ordinary bucket names.
    """

    def get_application(self, environ: dict[str, Any]) -> Any:
        path = environ["PATH_INFO"]
        if not path.startswith(_MOTO_OWN_PATHS):
            return super().get_application(environ)
        environ["PATH_INFO"] = "/"
        try:
            return super().get_application(environ)
        finally:
            environ["PATH_INFO"] = path


def _create_backend_app(service: Any) -> Any:
    """Return the application of one service.

    Raises:
        NotImplementedError: If moto lacks the service, or if it is a service of moto, not AWS.
    """
    if service is None or str(service).startswith(_MOTO_OWN_SERVICES):
        raise NotImplementedError("a service that moto does not have")
    return create_backend_app(service)


def reset_state() -> None:
    """Clear moto's state, which an earlier server in this process (in tests) can have changed."""
    BackendDict.reset()
    reset_model_data()


def make_training_role(account_id: str) -> None:
    """Create a role that SageMaker can assume and that allows everything.

    Clients check the role of a job before they submit the job.
    """
    roles: Any = iam_backends[account_id]["aws"]
    roles.create_role(
        TRAINING_ROLE,
        _policy(_TRUST),
        path="/",
        permissions_boundary=None,
        description="For training jobs of the local platform",
        tags=[],
        max_session_duration="3600",
    )
    roles.put_role_policy(TRAINING_ROLE, "everything", _policy(_ALL))


def _policy(statement: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def issued_key(account_id: str, key_id: str) -> AccessKey | None:
    """Return an active key that AssumeRole or CreateAccessKey issued in this account, or None."""
    roles: Any = sts_backends[account_id]["aws"]
    if role := roles.get_assumed_role_from_access_key(key_id):
        expires_at = role.expiration.replace(tzinfo=UTC).timestamp()
        return AccessKey(key_id, role.secret_access_key, role.session_token, expires_at)
    users: Any = iam_backends[account_id]["aws"]
    key = users.access_keys.get(key_id)
    return AccessKey(key_id, key.secret_access_key) if key and key.status == "Active" else None


def set_last_modified(account_id: str, bucket: str, key: str, moment: datetime) -> None:
    """Set the modification time of a restored object, which data freshness expectations use.

    S3's API cannot set it.
    """
    backend: Any = s3_backends[account_id]["aws"]
    backend.get_object(bucket, key).last_modified = moment.replace(tzinfo=None)


@functools.lru_cache(maxsize=1)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)


class QuietRequestHandler(MotoRequestHandler):
    """A request handler for moto that does not log every request."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the Date header, cached for a second.

        Formatting it would take a tenth of the time of a small request.
        """
        return _http_date(int(time.time() if timestamp is None else timestamp))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Do nothing, since a sweep makes thousands of requests, and clients get the errors."""
