"""The platform's parts put together: moto, the front, training jobs, builds and what keeps their state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.local.api import ACCOUNT_ID
from infra.local.builds.service import Builds
from infra.local.front import Front
from infra.local.in_process import client_factory
from infra.local.interfaces import Engine, ImageStore
from infra.local.moto_backend import moto_application, reset_state
from infra.local.server_contract import JOBS_STOP_DEADLINE_SECONDS
from infra.local.state.ecr_snapshot import EcrSnapshot
from infra.local.state.files import RecordStore
from infra.local.state.s3_snapshot import S3Snapshot
from infra.local.training.manager import TrainingJobs
from infra.local.training.service import training_service


class Platform:
    """`front` is the WSGI application to serve, after `start`. `close` stops every job and build first."""

    def __init__(
        self, state_dir: Path, endpoint_url: str, engine: Engine, images: ImageStore, quotas: Mapping[str, int]
    ) -> None:
        self._state_dir = state_dir
        self._endpoint_url = endpoint_url
        self._engine = engine
        self._images = images
        self.front = Front(moto_application(), self.status)
        clients = client_factory(self.front)
        self._s3 = S3Snapshot(state_dir / "s3", clients)
        self._ecr = EcrSnapshot(state_dir / "ecr.json", clients)
        self._jobs = TrainingJobs(engine, images, clients, RecordStore(state_dir / "training_jobs"), quotas)
        self._closing = False
        self._builds = Builds(images, clients, RecordStore(state_dir / "builds"), self._ecr.flush)
        self.front.add_services([training_service(self._jobs, clients), self._builds.service()])

    def start(self) -> None:
        """Restore what the last server kept, then begin to follow changes and to take jobs."""
        reset_state()
        self._s3.restore()
        self._ecr.restore(self._images.images())
        for snapshot in (self._s3, self._ecr):
            self.front.add_observer(snapshot.observe)
            snapshot.start()
        self._builds.load()
        self._jobs.start()

    def close(self, deadline_seconds: float = JOBS_STOP_DEADLINE_SECONDS) -> None:
        self._closing = True
        self._jobs.close(deadline_seconds)
        self._builds.close()
        self._s3.close()
        self._ecr.close()

    def status(self) -> dict[str, Any]:
        """The answer of GET /_nodesweep/status."""
        return {
            "running": not self._closing,
            "stopping": self._closing,
            "endpoint": self._endpoint_url,
            "pid": os.getpid(),
            "account_id": ACCOUNT_ID,
            "jobs_in_progress": self._jobs.in_progress(),
            "builds_in_progress": self._builds.in_progress(),
            "isolation": self._engine.isolation("ml.local.small"),
            "state_dir": str(self._state_dir),
        }
