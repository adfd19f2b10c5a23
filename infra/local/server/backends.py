"""The kinds of engine that a platform can be served with:
a further one is a row of `BACKENDS` and its own module.

Engines are imported on first use: the process engine needs no podman, a simulation none of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nodesweep.infra.local.api.access import access_keys
from nodesweep.infra.local.api.in_process import ClientFactory
from nodesweep.infra.local.api.protocol import ACCOUNT_ID, SIMULATED_ACCOUNT_ID
from nodesweep.infra.local.builds.ecr_registry import Registry
from nodesweep.infra.local.engine.errors import EngineError
from nodesweep.infra.local.interfaces import Engine, ImageStore, Room
from nodesweep.infra.local.jobs.execution import ExecutionServices
from nodesweep.infra.local.jobs.kept_metrics import KeptMetrics
from nodesweep.infra.local.processing.runner import EngineProcessingRunner, ProcessingRunner
from nodesweep.infra.local.sagemaker.metric_series import MetricSeries
from nodesweep.infra.local.server.contract import ServerConfig, ServerStartError
from nodesweep.infra.local.settings import SettingsError
from nodesweep.infra.local.state.files import RecordStore
from nodesweep.infra.local.training.runner import EngineRunner, JobRunner


@dataclass(frozen=True)
class Backend:
    """What runs a platform's jobs and builds its images, ready for use."""

    images: ImageStore
    make_runner: Callable[[ClientFactory], JobRunner]
    make_processing_runner: Callable[[ClientFactory], ProcessingRunner]
    account_id: str = ACCOUNT_ID
    room: Room | None = None
    """Of an engine that runs several jobs at once; None: one at a time."""
    registry: Registry | None = None
    """Where images are pushed to; None where ECR alone knows of them."""
    series: MetricSeries = field(default_factory=MetricSeries)
    """Where its jobs' metrics over time are kept."""
    kept_metrics: KeptMetrics | None = None
    """Where its nodes' metrics outlive the server, if anywhere."""
    is_simulated: bool = False
    """Whether roles, networks and others' images are taken by name."""


MakeBackend = Callable[[ServerConfig, str], Backend]
"""(settings, endpoint URL) -> backend. Raises EngineError and SettingsError."""


def make_backend(config: ServerConfig, endpoint_url: str) -> Backend:
    """The backend of the engine that is asked for. Raises ServerStartError."""
    try:
        return BACKENDS[config.engine](config, endpoint_url)
    except (EngineError, SettingsError) as error:
        raise ServerStartError(str(error)) from error


def with_real_nodes(
    config: ServerConfig,
    engine: Engine,
    images: ImageStore,
    room: Room | None = None,
    registry: Registry | None = None,
) -> Backend:
    """The backend of an engine whose nodes run."""

    series = MetricSeries()
    kept_metrics = KeptMetrics(RecordStore(config.state_dir / "node_metrics"))

    def services(clients: ClientFactory) -> ExecutionServices:
        return ExecutionServices(
            engine,
            images,
            clients,
            config.cold_start_seconds,
            file_systems=config.file_systems,
            series=series,
            kept_metrics=kept_metrics,
        )

    return Backend(
        images,
        lambda clients: EngineRunner(services(clients)),
        lambda clients: EngineProcessingRunner(services(clients)),
        room=room,
        registry=registry,
        series=series,
        kept_metrics=kept_metrics,
    )


def _process(config: ServerConfig, endpoint_url: str) -> Backend:
    """Nodes are process trees on this machine."""
    from nodesweep.infra.local.engine.process.engine import ProcessEngine
    from nodesweep.infra.local.engine.process.image_store import ProcessImageStore

    images = ProcessImageStore(config.state_dir)
    node_key = access_keys(config.state_dir).node
    return with_real_nodes(
        config, ProcessEngine(config.state_dir / "engine", images, endpoint_url, node_key), images
    )


def _container(config: ServerConfig, endpoint_url: str) -> Backend:
    """Nodes are containers; images are in a registry."""
    from nodesweep.infra.local.engine.choice import make_container_engine

    engine, images = make_container_engine(config.state_dir, endpoint_url, config.registry)
    return with_real_nodes(config, engine, images, engine.room, images.registry)


def _simulated(config: ServerConfig, endpoint_url: str) -> Backend:
    """Nothing runs: times are computed."""
    from nodesweep.infra.local.simulation.execution import SimulatedRunner
    from nodesweep.infra.local.simulation.images import SimulatedImageStore
    from nodesweep.infra.local.simulation.model import PerformanceModel, read_model
    from nodesweep.infra.local.simulation.processing import SimulatedProcessingRunner

    model = read_model(config.model_file) if config.model_file else PerformanceModel()
    images = SimulatedImageStore(config.state_dir)
    return Backend(
        images,
        lambda clients: SimulatedRunner(
            model, images, clients, config.cold_start_seconds, config.time_scale
        ),
        lambda clients: SimulatedProcessingRunner(
            model,
            images,
            clients,
            config.cold_start_seconds,
            time_scale=config.time_scale,
            leaves=config.processing_leaves,
        ),
        account_id=SIMULATED_ACCOUNT_ID,
        is_simulated=True,
    )


BACKENDS: Mapping[str, MakeBackend] = {
    "process": _process,
    "container": _container,
    "simulated": _simulated,
}
