"""The platform, Prefect and signal handlers around a flow that a command runs."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from prefect.exceptions import CancelledRun, TerminationSignal

from nodesweep.cli import session
from nodesweep.configs.models import PlatformConfig
from nodesweep.errors import JobRefused, RunFailed
from nodesweep.polling import STOP, Cancelled, Clock


@pytest.fixture(autouse=True)
def without_prefect(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session, "PREFECT_DEFAULTS", {})
    monkeypatch.setattr(session, "connect_prefect", lambda modules: None)
    with warnings.catch_warnings():
        yield


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_is_lost_ends_the_command_as_any_other(
    platform: PlatformConfig,
) -> None:
    """Python ignores what a signal's handler raises while an object is deleted."""

    class Deleted:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt), session.flow_session(platform):
        Deleted()
        Clock().sleep(60.0)


def test_platform_and_prefect_start_side_by_side(
    platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=300)

    @contextmanager
    def running_platform(section: PlatformConfig) -> Iterator[PlatformConfig]:
        both.wait()
        yield section.model_copy(update={"endpoint_url": "http://127.0.0.1:9"})

    monkeypatch.setattr(session, "running_platform", running_platform)
    monkeypatch.setattr(session, "connect_prefect", lambda modules: both.wait())
    with session.flow_session(platform) as running:
        assert running.endpoint_url == "http://127.0.0.1:9"


def test_platform_that_comes_up_meanwhile_is_left_where_prefect_does_not_start(
    platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    @contextmanager
    def running_platform(section: PlatformConfig) -> Iterator[PlatformConfig]:
        time.sleep(0.3)
        happened.append("up")
        try:
            yield section
        except BaseException as error:
            happened.append(f"left for {type(error).__name__}")
            raise

    def connect_prefect(modules: Sequence[str]) -> None:
        raise RunFailed("no server")

    monkeypatch.setattr(session, "running_platform", running_platform)
    monkeypatch.setattr(session, "connect_prefect", connect_prefect)
    with pytest.raises(RunFailed, match="no server"), session.flow_session(platform):
        pytest.fail("there is no Prefect")
    assert happened == ["up", "left for RunFailed"]


@pytest.mark.parametrize(
    ("interrupted", "cancelled", "cause", "raised"),
    [
        (True, False, Cancelled(), KeyboardInterrupt),
        (True, False, TerminationSignal(15), KeyboardInterrupt),
        (True, False, JobRefused("these jobs could not be stopped: a"), JobRefused),
        (False, True, Cancelled(), RunFailed),
    ],
)
def test_end_of_a_flow_that_is_cancelled_to_prefect_is_what_ended_it(
    interrupted: bool, cancelled: bool, cause: BaseException, raised: type[BaseException]
) -> None:
    def flow(points: int) -> None:
        STOP.interrupted, STOP.cancelled, STOP.cause = interrupted, cancelled, cause
        raise CancelledRun

    with pytest.raises(raised):
        session.call_flow(flow, points=1)  # type: ignore[arg-type]
    STOP.clear()
