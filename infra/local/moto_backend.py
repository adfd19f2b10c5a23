"""moto's server application, set up as the platform uses it. The only module that reaches into moto itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast
from wsgiref.types import StartResponse, WSGIApplication

from moto.core.base_backend import BackendDict
from moto.core.model_instances import reset_model_data
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3.models import s3_backends


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


def set_last_modified(account_id: str, bucket: str, key: str, moment: datetime) -> None:
    """Give a restored object the age it had: S3's API has no call for it, and expectations on freshness read it."""
    backend: Any = s3_backends[account_id]["aws"]
    backend.get_object(bucket, key).last_modified = moment.replace(tzinfo=None)


class QuietRequestHandler(MotoRequestHandler):
    """moto's request handler without a log line per request."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are not logged: a sweep makes thousands, and a failed one answers its own reason."""
