"""What stands around a flow that a command runs."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator

import pytest

from cli import session
from configs.models import PlatformConfig
from tasks.polling import Clock


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
