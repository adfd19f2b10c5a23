"""A platform with a fake engine, served from this process or in separate processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest

from infra.local.tests.platform_client import serve_platform
from sagemaker_emulator.server import daemon
from sagemaker_emulator.server.contract import ServerConfig
from tests.processes.warm_process import Forked, WarmProcess, warm_process

# Examples can be slow on a busy machine, which is not a failure.
hypothesis.settings.register_profile("emulator", deadline=None)
hypothesis.settings.load_profile("emulator")
_WITH_FAKES = """
import sys
from infra.local.tests.serve_with_fakes import main
main(*sys.argv[1:])
"""
_AS_STARTED = """
import os, sys
from sagemaker_emulator.__main__ import main
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for handle in (1, 2):
    os.dup2(log, handle)
sys.exit(main(["serve", "--settings", sys.argv[2]]))
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A served platform per test module, with a bucket for results."""
    for served in serve_platform(tmp_path_factory.mktemp("platform"), **{"ml.m5.large": 2}):
        served.s3.create_bucket(Bucket="results")
        yield served


@pytest.fixture(scope="session")
def warm_server() -> Iterator[WarmProcess]:
    """A process that has imported the modules that a server needs."""
    with warm_process(
        "sagemaker_emulator.__main__", "infra.local.tests.serve_with_fakes"
    ) as process:
        yield process


@pytest.fixture
def serve_with_fakes(warm_server: WarmProcess) -> Callable[..., Forked]:
    """Return a function that starts a platform with a fake engine as a process.

    `serve_with_fakes(state_dir, owner_pid)`
    """
    return lambda state_dir, *owner_pid: warm_server.start(
        _WITH_FAKES, str(state_dir), *map(str, owner_pid)
    )


@pytest.fixture
def forked_servers(warm_server: WarmProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make daemon.start() fork instead of starting a new interpreter."""

    def spawn(config: ServerConfig) -> Forked:
        log: Path = config.state_dir / daemon._LOG_FILE
        return warm_server.start(_AS_STARTED, str(log), config.to_json())

    monkeypatch.setattr(daemon, "_spawn", spawn)
