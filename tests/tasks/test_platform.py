from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError

import tasks.platform
from tasks.platform import OUTAGE_JITTER, OUTAGE_PAUSES_SECONDS, patient
from tasks.polling import Cancelled, Clock
from tests.tasks.test_errors import client_error


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that a patient call makes, none of which takes any time."""
    made: list[float] = []
    clock = Clock(wait=lambda seconds: bool(made.append(seconds)))
    monkeypatch.setattr(tasks.platform, "Clock", lambda: clock)
    return made


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    @patient
    def look_at_it() -> str:
        if left:
            raise left.pop(0)
        return "seen"

    return look_at_it


def test_patient_call_waits_an_outage_out(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "nodesweep.platform")
    outage = [client_error("InternalError", 500)] * len(OUTAGE_PAUSES_SECONDS)
    assert failing(*outage)() == "seen"
    least, most = OUTAGE_JITTER
    within = (
        least * pause <= made <= most * pause
        for made, pause in zip(pauses, OUTAGE_PAUSES_SECONDS, strict=True)
    )
    assert all(within) and 300 < sum(pauses) < 900
    assert "look at it: An error occurred (InternalError)" in caplog.messages[0]


def test_patient_call_gives_up_with_the_last_error(pauses: list[float]) -> None:
    outage = [client_error("InternalError", 500)] * (1 + len(OUTAGE_PAUSES_SECONDS))
    with pytest.raises(ClientError, match="InternalError"):
        failing(*outage)()
    assert len(pauses) == len(OUTAGE_PAUSES_SECONDS)


def test_patient_call_does_not_repeat_what_no_repetition_helps(pauses: list[float]) -> None:
    with pytest.raises(ClientError, match="AccessDenied"):
        failing(client_error("AccessDenied", 403))()
    assert pauses == []


def test_patient_call_ends_at_once_when_the_run_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks.platform, "Clock", lambda: Clock(wait=lambda seconds: True))
    with pytest.raises(Cancelled):
        failing(client_error("InternalError", 500))()
