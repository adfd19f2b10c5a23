"""The backends that a platform can use.

To add a backend, write a module and add a row to `BACKENDS`. Engines are only imported when used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sagemaker_emulator.api.access import access_keys
from sagemaker_emulator.api.in_process import ClientFactory
from sagemaker_emulator.api.protocol import ACCOUNT_ID, SIMULATED_ACCOUNT_ID
from sagemaker_emulator.builds.ecr_registry import Registry
from sagemaker_emulator.engine.errors import EngineError
from sagemaker_emulator.interfaces import Engine, ImageStore, Room
from sagemaker_emulator.jobs.book import Runner
from sagemaker_emulator.jobs.execution import ExecutionServices
from sagemaker_emulator.jobs.node_metrics_store import NodeMetricsStore
from sagemaker_emulator.processing.record import ProcessingJob
from sagemaker_emulator.processing.runner import EngineProcessingRunner
from sagemaker_emulator.server.contract import ServerConfig, ServerStartError
from sagemaker_emulator.settings import SettingsError
from sagemaker_emulator.state.files import RecordStore
from sagemaker_emulator.training.runner import EngineTrainingRunner, JobRunner
from sagemaker_emulator.training.service_quotas import most_nodes


@dataclass(frozen=True)
class Backend:
    """Runs the jobs of a platform and builds its images."""

    images: ImageStore
    make_runner: Callable[[ClientFactory], JobRunner]
    make_processing_runner: Callable[[ClientFactory], Runner[ProcessingJob]]
    account_id: str = ACCOUNT_ID
    room: Room | None = None
    """Capacity of an engine that runs jobs in parallel, or None if it runs one job at a time."""
    registry: Registry | None = None
    """Registry that images are pushed to, or None if images are only registered in ECR."""
    kept_metrics: NodeMetricsStore | None = None
    """Keeps node metrics across restarts, or None to lose them."""
    most_nodes: Mapping[str, int] = field(default_factory=dict)
    """Largest number of nodes of a job by instance type; empty if there is no limit."""
    is_simulated: bool = False
    """True if roles, networks and images of other accounts are accepted by name."""


MakeBackend = Callable[[ServerConfig, str], Backend]
"""Returns the backend for settings and an endpoint URL; raises EngineError or SettingsError."""


def make_backend(config: ServerConfig, endpoint_url: str) -> Backend:
    """Return the backend of the configured engine.

    Raises:
        ServerStartError: If the engine or its settings cannot be used.
    """
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
    """Return the backend of an engine with real nodes."""
    kept_metrics = NodeMetricsStore(RecordStore(config.state_dir / "node_metrics"))

    def services(clients: ClientFactory) -> ExecutionServices:
        return ExecutionServices(
            engine,
            images,
            clients,
            config.cold_start_seconds,
            file_systems=config.file_systems,
            kept_metrics=kept_metrics,
        )

    return Backend(
        images,
        lambda clients: EngineTrainingRunner(services(clients)),
        lambda clients: EngineProcessingRunner(services(clients)),
        room=room,
        registry=registry,
        most_nodes=most_nodes(engine.capacity_problem),
        kept_metrics=kept_metrics,
    )


def _process(config: ServerConfig, endpoint_url: str) -> Backend:
    from sagemaker_emulator.engine.process.engine import ProcessEngine
    from sagemaker_emulator.engine.process.image_store import ProcessImageStore

    images = ProcessImageStore(config.state_dir)
    node_key = access_keys(config.state_dir).node
    return with_real_nodes(
        config, ProcessEngine(config.state_dir / "engine", images, endpoint_url, node_key), images
    )


def _container(config: ServerConfig, endpoint_url: str) -> Backend:
    from sagemaker_emulator.engine.choice import make_container_engine

    engine, images = make_container_engine(config.state_dir, endpoint_url, config.registry)
    return with_real_nodes(config, engine, images, engine.room, images.registry)


def _simulated(config: ServerConfig, endpoint_url: str) -> Backend:
    from sagemaker_emulator.simulation.execution import SimulatedRunner
    from sagemaker_emulator.simulation.images import SimulatedImageStore
    from sagemaker_emulator.simulation.model import PerformanceModel, read_model
    from sagemaker_emulator.simulation.processing import SimulatedProcessingRunner

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
