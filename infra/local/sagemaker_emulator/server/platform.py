"""Assembles the platform from moto, the front end, jobs, builds and snapshots."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

from sagemaker_emulator.api.access import Gate, access_keys
from sagemaker_emulator.api.front import Front
from sagemaker_emulator.api.in_process import OWN_KEY_ID, client_factory
from sagemaker_emulator.api.moto_backend import (
    issued_key,
    make_training_role,
    moto_application,
    reset_state,
)
from sagemaker_emulator.api.moto_objects import stored_object
from sagemaker_emulator.builds.ecr_registry import EcrRegistry
from sagemaker_emulator.builds.service import Builds
from sagemaker_emulator.faults.injector import FaultInjector
from sagemaker_emulator.faults.plan import FaultPlan, read_fault_plan
from sagemaker_emulator.jobs.queue import SharedRoom, SingleJobRoom
from sagemaker_emulator.jobs.utilisation import put_values
from sagemaker_emulator.processing.manager import ProcessingJobs
from sagemaker_emulator.sagemaker.service import sagemaker_service
from sagemaker_emulator.server.backends import Backend
from sagemaker_emulator.server.contract import (
    CREDENTIALS_FILE,
    JOBS_STOP_DEADLINE_SECONDS,
    SERVICE,
    ServerConfig,
)
from sagemaker_emulator.state import unsaved
from sagemaker_emulator.state.ecr_snapshot import EcrSnapshot
from sagemaker_emulator.state.files import RecordStore
from sagemaker_emulator.state.s3_snapshot import S3Snapshot
from sagemaker_emulator.training.batch import Batch
from sagemaker_emulator.training.manager import TrainingJobs
from sagemaker_emulator.training.plans import TrainingPlans
from sagemaker_emulator.training.service_quotas import quota_service


class Platform:
    """The services, jobs and builds of the platform, and their state.

    `front` is the WSGI application to serve after `start`. `close` stops all jobs and builds.
    """

    def __init__(self, config: ServerConfig, endpoint_url: str, backend: Backend) -> None:
        """Assemble the platform.

        Raises:
            SettingsError: If the fault plan cannot be used.
        """
        self._state_dir = state_dir = config.state_dir
        self._endpoint_url = endpoint_url
        self._images = backend.images
        self._account_id = backend.account_id
        self._is_simulated = backend.is_simulated
        moto = moto_application(self._account_id)
        registry = backend.registry
        ecr_registry = EcrRegistry(registry.address) if registry else None
        gate = Gate(access_keys(state_dir), OWN_KEY_ID, partial(issued_key, self._account_id))
        faults = FaultInjector(
            read_fault_plan(config.faults_file) if config.faults_file else FaultPlan()
        )
        application = ecr_registry.wrap(moto) if ecr_registry else moto
        self.front = Front(
            application, self.status, gate, faults, is_simulated=backend.is_simulated
        )
        self._clients = clients = client_factory(self.front)
        self._kept_metrics = backend.kept_metrics
        if registry and ecr_registry:
            ecr_registry.connect(clients)
            registry.rules = ecr_registry
        self._registry = registry
        self._ledger = unsaved.Ledger()
        self._s3 = S3Snapshot(
            state_dir / "s3",
            clients,
            self._ledger,
            self._account_id,
            partial(stored_object, self._account_id),
        )
        self._ecr = EcrSnapshot(state_dir / "ecr.json", clients, self._ledger)
        self._settings = config.described()
        self._runner = backend.make_runner(clients)
        jobs, processing, builds, plans, batch = (
            RecordStore(state_dir / name, self._ledger)
            for name in ("training_jobs", "processing_jobs", "builds", "training_plans", "batch")
        )
        room = SharedRoom(backend.room or SingleJobRoom())  # shared by both kinds of jobs
        self._jobs = TrainingJobs(self._runner, jobs, config.quotas, faults, room=room)
        self._processing = ProcessingJobs(
            backend.make_processing_runner(clients), processing, config.quotas, faults, room=room
        )
        self._plans = TrainingPlans(plans, self._account_id, self._jobs.plan_instances_in_use)
        self._closing = False
        self._builds = Builds(self._images, clients, builds, self._account_id)
        sagemaker = sagemaker_service(self._jobs, self._processing, self._plans, clients)
        self._batch = Batch(batch, self._account_id, sagemaker)
        self.front.add_services([sagemaker, self._builds.service(), self._batch.service()])
        if backend.most_nodes:
            self.front.add_services([quota_service(backend.most_nodes)])

    def start(self) -> None:
        """Restore the state of the last server, then track changes and accept jobs."""
        reset_state()
        if not self._is_simulated:  # a simulation accepts roles by name
            make_training_role(self._account_id)
        self._s3.restore()
        self._ecr.restore(self._images.images())
        # Do this last, so that a start that fails above loses nothing.
        unsaved.begin(self._state_dir)
        for snapshot in (self._s3, self._ecr):
            self.front.add_observer(snapshot.observe)
        self._builds.load()
        self._plans.load()
        self._batch.load()
        if self._kept_metrics:
            self._kept_metrics.restore(self._clients, put_values)
        self._jobs.start()
        self._processing.start()

    def close(self, deadline_seconds: float = JOBS_STOP_DEADLINE_SECONDS) -> None:
        self._closing = True
        deadline = time.monotonic() + deadline_seconds
        books = self._jobs, self._processing
        for book in books:
            book.request_stop_of_all()
        for book in books:
            book.close(max(0.0, deadline - time.monotonic()))
        self._builds.close()
        self._s3.close()
        self._ecr.close()
        if self._registry:
            self._registry.close()
        unsaved.end(self._state_dir, self._ledger)

    def status(self) -> dict[str, Any]:
        """Return the response of GET /_nodesweep/status."""
        return {
            "service": SERVICE,
            "running": not self._closing,
            "stopping": self._closing,
            "endpoint": self._endpoint_url,
            "pid": os.getpid(),
            "account_id": self._account_id,
            "jobs_in_progress": [*self._jobs.in_progress(), *self._processing.in_progress()],
            "builds_in_progress": self._builds.in_progress(),
            "not_kept": self._ledger.unsaved(),
            "damaged": [
                *self._ledger.damaged(),
                *(self._kept_metrics.damaged() if self._kept_metrics else ()),
            ],
            "isolation": self._runner.isolation(),
            "state_dir": str(self._state_dir),
            "credentials_file": str(self._state_dir / CREDENTIALS_FILE),
            **self._settings,
        }
