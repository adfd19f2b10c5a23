"""Shared fixtures: a small valid config, clients of a mocked AWS, a Prefect server."""

from __future__ import annotations

import copy
import functools
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import hypothesis
import pytest
from moto import mock_aws

import nodesweep.aws.responses
import nodesweep.scaling.secrets
from nodesweep.aws.api_models import with_shared_models
from nodesweep.configs import price_list
from nodesweep.configs.load import parse_config
from nodesweep.configs.models import BenchmarkConfig, ImageConfig, PlatformConfig
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.store import FolderStore, Store
from nodesweep.polling import STOP
from nodesweep.tasks.image.find import read_context
from nodesweep.tasks.report import pricing
from sagemaker_emulator.engine.process.image_store import ProcessImageStore

REPOSITORY = Path(__file__).resolve().parents[1]
# Imports create no garbage, and looking for it takes a third of their time.
gc.disable()
# A busy machine may slow an example down; that is not a failure.
hypothesis.settings.register_profile("nodesweep", deadline=None)
hypothesis.settings.load_profile("nodesweep")

_RAW: dict[str, Any] = {
    "name": "bench",
    "dataset": {
        "name": "digits",
        "source": "data",
        "format": "parquet",
        "expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "label"}}],
    },
    "image": {"context": "image"},
    "training": {
        "instance_type": "ml.m5.xlarge",
        "max_runtime_seconds": 3600,
        "distribution": {"kind": "none"},
        "batch": {"policy": "fixed_global", "size": 64},
        "learning_rate": {"value": 0.1, "rule": "linear"},
        "hyperparameters": {
            "epochs": 3,
            "batch-size": "{per_replica_batch_size}",
            "lr": "{learning_rate}",
        },
    },
    "sweep": {"node_counts": [1, 2], "repeats": 1},
    "platform": {
        "region": "us-east-1",
        "bucket": "bench-bucket",
        "role_arn": "arn:aws:iam::123456789012:role/training",
    },
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of flows first, which wait most, so that all workers end at the same time."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/flows/"))


def pytest_collection_finish() -> None:
    """Exclude everything imported from later garbage collections, and collect as rarely as the
    command does.
    """
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Collect garbage once. pytest would do so five times, for a second of each worker's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def raw_config() -> dict[str, Any]:
    """A valid config as loaded from YAML; change it freely."""
    return copy.deepcopy(_RAW)


@pytest.fixture
def make_config() -> Callable[..., BenchmarkConfig]:
    """Return a factory of configs that changes sections of the small valid one.

    `make_config(training={"seed": 2})` merges one level deep.
    """

    def make(**sections: Any) -> BenchmarkConfig:
        raw = copy.deepcopy(_RAW)
        for name, values in sections.items():
            raw[name] = {**raw.get(name, {}), **values} if isinstance(values, dict) else values
        return parse_config(raw, origin="test")

    return make


@pytest.fixture
def benchmark_config(make_config: Callable[..., BenchmarkConfig]) -> BenchmarkConfig:
    """The small valid config."""
    return make_config()


@pytest.fixture
def platform(benchmark_config: BenchmarkConfig) -> PlatformConfig:
    """The platform section of the small valid config."""
    return benchmark_config.platform


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Yield a factory of clients, as in `aws("s3")`, of a fresh mocked account in us-east-1."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield lambda service: _session_for_mocks().client(service, region_name="us-east-1")


@functools.cache
def _session_for_mocks() -> boto3.Session:
    """Return the session of all mocked clients; a new one takes as long as a test."""
    models = with_shared_models(botocore.session.Session())
    return boto3.Session("testing", "testing", botocore_session=models)


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, platform: PlatformConfig, tmp_path: Path) -> Store:
    """Each kind of store in turn, each of them empty."""
    if request.param == "folder":
        return FolderStore(tmp_path / "store", platform.prefix)
    s3 = request.getfixturevalue("aws")("s3")
    s3.create_bucket(Bucket=platform.bucket)
    s3.meta.events.register("after-call.s3.GetObject", _date)
    return BucketStore(platform, client=s3)


def _date(parsed: dict[str, Any], **_: Any) -> None:
    """Add the header that S3 sends and a mocked one does not."""
    headers = parsed["ResponseMetadata"]["HTTPHeaders"]
    headers["date"] = format_datetime(datetime.now(UTC), usegmt=True)


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Prefect server shared by many tests; starting one takes up to 7 s of CPU time."""
    from tests.processes.shared_prefect import server_folder, shared_prefect

    with shared_prefect(server_folder(tmp_path_factory.getbasetemp())):
        yield


@pytest.fixture(scope="session")
def image_uri() -> str:
    """URI of the training image in `image_store`."""
    return (
        "localhost/training:"
        + read_context(ImageConfig(context=str(REPOSITORY / "infra" / "image"))).tag
    )


@pytest.fixture(scope="session")
def image_store(image_uri: str) -> ProcessImageStore:
    """The training image, built once and cached in .nodesweep/tests (about 300 MB of downloads)."""
    store = ProcessImageStore(REPOSITORY / ".nodesweep" / "tests")
    tag = image_uri.rpartition(":")[2]
    store.build(REPOSITORY / "infra" / "image", "training", tag, {}, print, threading.Event(), 900)
    return store


@pytest.fixture(scope="session")
def image_python(image_store: ProcessImageStore, image_uri: str) -> str:
    """Python of an environment with the training image's requirements."""
    image = image_store.resolve(image_uri)
    assert image is not None
    return str(image / "venv" / "bin" / "python")


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without plots, as if no run completed: drawing them takes a second of CPU time."""
    monkeypatch.setattr("nodesweep.scaling.report.render.draw_plots", lambda report: {})


@pytest.fixture(autouse=True, scope="session")
def own_prices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the prices that this user has read out of the tests, which have a folder of their own.

    $XDG_CACHE_HOME stays, for pip and uv; a test that sets it gets the folder below it.
    """
    real, place = price_list.cache_folder, tmp_path_factory.mktemp("prices")
    of_user = real()

    def elsewhere() -> Path:
        return place if real() == of_user else real()

    with pytest.MonkeyPatch.context() as patch:
        for module in (price_list, pricing):
            patch.setattr(module, "cache_folder", elsewhere)
        yield


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Forget the secrets of other tests' configs and which endpoints were silent (a server of
    another test may have had the same port), and reset the logging that a command sets up for its
    terminal (nodesweep/cli/session.py).

    One fixture, without monkeypatch, since every test pays for it.
    """
    nodesweep.scaling.secrets._known = nodesweep.scaling.secrets._KnownSecrets()
    nodesweep.aws.responses._SILENCES = {}
    yield
    logger = logging.getLogger("nodesweep")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
    STOP.clear()
