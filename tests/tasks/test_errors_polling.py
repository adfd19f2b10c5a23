from __future__ import annotations

import itertools
import logging
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from tasks.errors import PreflightRefused, is_passing, retry_passing
from tasks.polling import Cancelled, Clock, Progress, intervals


def client_error(code: str, status: int = 400) -> ClientError:
    answer = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "Operation")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (client_error("ThrottlingException"), True),
        (client_error("Whatever", 503), True),
        (EndpointConnectionError(endpoint_url="http://x"), True),
        (client_error("ValidationException"), False),
        (client_error("AccessDeniedException", 403), False),
        (client_error("ResourceLimitExceeded"), False),
        (PreflightRefused(("no",)), False),
    ],
)
def test_only_what_may_pass_is_retried(error: Exception, passing: bool) -> None:
    class State:
        def result(self) -> None:
            raise error

    assert is_passing(error) is passing
    assert retry_passing(SimpleNamespace(name="task"), None, State()) is passing


def test_preflight_lists_every_problem() -> None:
    assert str(PreflightRefused(("one", "two"))).endswith("  - one\n  - two")


def test_intervals_grow_to_their_limit_with_jitter() -> None:
    pauses = list(itertools.islice(intervals(1.0, 4.0), 50))
    assert 0.8 <= pauses[0] <= 1.2
    assert all(3.2 <= pause <= 4.8 for pause in pauses[10:])
    assert len(set(pauses[10:])) > 1


def test_sleep_ends_at_once_when_the_run_is_cancelled() -> None:
    with pytest.raises(Cancelled):
        Clock(wait=lambda seconds: True).sleep(3600)


def test_progress_says_changes_and_long_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nodesweep.test")
    now = iter([0.0, 0.0, 5.0, 16.0, 17.0, 20.0])
    progress = Progress("job", logging.getLogger("nodesweep.test"), Clock(monotonic=lambda: next(now)))
    changed = [progress.note(state) for state in ("Starting", "Starting", "Starting", "Training", "Training")]
    assert changed == [True, False, False, True, False]
    assert [record.getMessage() for record in caplog.records] == [
        "job: Starting", "job: still Starting (16 s)", "job: Training",
    ]  # fmt: skip
