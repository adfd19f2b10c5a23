"""moto's server application, set up as the platform uses it. The only module that reaches into moto itself."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, cast
from wsgiref.types import StartResponse, WSGIApplication

from moto import backends
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

from infra.local.interfaces import AccessKey


@functools.cache
def _moto_modules() -> frozenset[str]:
    """moto's own answer, which looks at its 180 folders anew for every request: an eighth of the time of a sweep."""
    return frozenset(_list_of_moto_modules())


_list_of_moto_modules = backends.list_of_moto_modules
backends.list_of_moto_modules = _moto_modules


def moto_application(account_id: str) -> WSGIApplication:
    """All of moto's services, in this account; NotImplementedError for others. Their state is the process's."""
    dispatcher = cast(WSGIApplication, DomainDispatcherApplication(_create_backend_app))

    def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        environ["HTTP_X_MOTO_ACCOUNT_ID"] = account_id
        return dispatcher(environ, start_response)

    return application


def _create_backend_app(service: Any) -> Any:
    """The application of one service. Raises NotImplementedError for one that moto doesn't have."""
    if service is None:
        raise NotImplementedError("a service that moto does not have")
    return create_backend_app(service)


def reset_state() -> None:
    """Forget everything moto holds: a server that starts in a used process (tests) must not see the last one's."""
    BackendDict.reset()
    reset_model_data()


def issued_key(account_id: str, key_id: str) -> AccessKey | None:
    """A key that AssumeRole or CreateAccessKey of this account gave out; None for any other and for a withdrawn one."""
    roles: Any = sts_backends[account_id]["aws"]
    if role := roles.get_assumed_role_from_access_key(key_id):
        expires_at = role.expiration.replace(tzinfo=UTC).timestamp()
        return AccessKey(key_id, role.secret_access_key, role.session_token, expires_at)
    users: Any = iam_backends[account_id]["aws"]
    key = users.access_keys.get(key_id)
    return AccessKey(key_id, key.secret_access_key) if key and key.status == "Active" else None


def set_last_modified(account_id: str, bucket: str, key: str, moment: datetime) -> None:
    """Give a restored object the age it had: S3's API has no call for it, and expectations on freshness read it."""
    backend: Any = s3_backends[account_id]["aws"]
    backend.get_object(bucket, key).last_modified = moment.replace(tzinfo=None)


class QuietRequestHandler(MotoRequestHandler):
    """moto's request handler without a log line per request."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are not logged: a sweep makes thousands, and a failed one answers its own reason."""
