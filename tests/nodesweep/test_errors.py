from __future__ import annotations

from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from nodesweep.errors import BackendUnavailable, PreflightRefused, is_transient, retry_transient


def client_error(code: str, status: int = 400) -> ClientError:
    answer = {
        "Error": {"Code": code, "Message": "m"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "Operation")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (client_error("ThrottlingException"), True),
        (client_error("Whatever", 503), True),
        (EndpointConnectionError(endpoint_url="http://x"), True),
        (BackendUnavailable("squeue timed out"), True),
        (client_error("ValidationException"), False),
        (client_error("InternalError", 507), False),
        (client_error("AccessDeniedException", 403), False),
        (client_error("ResourceLimitExceeded"), False),
        (PreflightRefused("no"), False),
    ],
)
def test_only_what_may_pass_is_retried(error: Exception, transient: bool) -> None:
    class State:
        def result(self) -> None:
            raise error

    assert is_transient(error) is transient
    assert retry_transient(SimpleNamespace(name="task"), None, State()) is transient


def test_preflight_lists_every_problem() -> None:
    assert str(PreflightRefused("one", "two")).endswith("  - one\n  - two")
