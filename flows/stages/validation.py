"""Validate tables in S3, either on this machine or with a Spark Processing job near the data.

A retried flow run finds its job by name; the job ends with the flow run, just as training jobs do
(flows/stages/ending.py).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.dataset import DatasetConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import JobRefused, ValidationJobFailed
from nodesweep.events import event_extra
from nodesweep.flows.stages.building import start_build, stopping_build_on_error
from nodesweep.flows.stages.ending import is_cancel
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker.validation_request import build_validation_request
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import Price, node_cost_usd, price_of
from nodesweep.scaling.job import JobStatus, LogLine
from nodesweep.scaling.outcome.outcome import is_retryable
from nodesweep.scaling.outcome.spark_log import last_own_lines
from nodesweep.scaling.planning.validation import (
    attempt_budget_problem,
    choose_engine,
    size_hint,
    spark_image,
)
from nodesweep.tasks.calls import (
    find_image,
    look_up_prices,
    pin_base_images,
    read_verdict,
    submit_validation_job,
    validate_remote,
)
from nodesweep.tasks.dataset.remote.objects import RemoteDataset, RemoteSource
from nodesweep.tasks.dataset.spark.contract import report_of, request_document
from nodesweep.tasks.dataset.validation_report import ValidationReport
from nodesweep.tasks.image.find import Images, read_context
from nodesweep.tasks.processing.jobs import (
    failure_text,
    sweep_stopped,
    validation_job_status,
    watch_validation_job,
)
from nodesweep.tasks.report.pricing import PROCESSING
from nodesweep.tasks.sweeps.claims import is_sweep_stopped
from nodesweep.tasks.sweeps.owner import owned
from nodesweep.tasks.sweeps.stopping import stop_sweep_jobs_now

logger = logging.getLogger("nodesweep.dataset")
_OF_DATASET = event_extra("message", stage="dataset")
_MOST_JOBS = 99
"""Maximum jobs per sweep, because the name has two digits for the number."""


def log_engine(section: DatasetConfig, size_bytes: int) -> dict[str, Any] | None:
    """Log the engine that validates a dataset of this size, and the reason.

    Returns:
        The record of the choice, or None if the config does not configure an engine.
    """
    if section.validation is None:
        if (hint := size_hint(section, size_bytes)) is not None:
            logger.info("notice: %s", hint, extra=_OF_DATASET)
        return None
    choice = choose_engine(section, size_bytes)
    logger.info("validating the dataset with %s: %s", choice.engine, choice.why, extra=_OF_DATASET)
    return {"engine": choice.engine, "why": choice.why}


def _was_stopped(ended: JobStatus) -> bool:
    """Return True if a user stopped the job, rather than max_runtime_seconds."""
    return ended.state == "stopped" and not ended.reason


@dataclass(frozen=True)
class Validation:
    """Validates the tables of a dataset in S3.

    Attributes:
        config: The benchmark.
        source: The dataset in S3.
        backend: The platform's backend.
    """

    config: BenchmarkConfig
    source: RemoteSource
    backend: Backend

    def validate(
        self, dataset: RemoteDataset, sweep: str
    ) -> tuple[ValidationReport, dict[str, Any] | None]:
        """Return the verdict on a dataset in S3, and a record of how it was obtained.

        Raises:
            ValidationJobFailed: The Spark job produced no verdict.
        """
        section = self.source.section
        recorded = log_engine(section, dataset.size_bytes)
        if recorded is None or recorded["engine"] == "pandas":
            return validate_remote(self.source, dataset), recorded
        document = names.pretty_json(request_document(section, dataset))
        image_uri, price = self._image_uri(), self._price()
        with owned(
            self.backend.store, sweep
        ):  # so that a reaper does not consider the job an orphan
            try:
                verdict, job = self._run_job(sweep, image_uri, document, price)
            except BaseException as error:
                if is_cancel(error):
                    logger.warning("stopping the Processing job of %s", sweep)
                    stop_sweep_jobs_now(self.backend, sweep)
                raise
        report = report_of(verdict, section, dataset, datetime.now(UTC))
        return report, {**recorded, **job}

    def _image_uri(self) -> str:
        """Return the Spark image, pinned by digest: configured, found in ECR or newly built."""
        image = spark_image(self.config.image, self.config.validation)
        if image.uri is not None:
            return image.uri
        images = Images(self.backend, image)
        context = read_context(image, pin_base_images(images, image.all_build_args))
        found = find_image(images, context)
        if found is None:
            building = start_build(images, context)
            with stopping_build_on_error(building):
                found = building.result()
        logger.info("Spark image %s", found.uri, extra=_OF_DATASET)
        return found.uri

    def _price(self) -> Price:
        """Return the hourly price of one instance of the job."""
        instance = load_catalogue().get(self.config.validation.instance_type)
        [(priced, notices)] = look_up_prices(self.backend, [(instance, PROCESSING)])
        for notice in notices:
            logger.info("notice: %s", notice, extra=_OF_DATASET)
        return price_of(priced, self.config.platform.region)

    def _run_job(
        self, sweep: str, image_uri: str, document: bytes, price: Price
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Run attempts until one has a verdict; return the verdict and the record of its job.

        Only capacity shortages, internal errors, and failures in an earlier try of this run are
        retried, up to sweep.max_attempts in total; jobs stopped by a user in an earlier try do not
        count.

        Raises:
            ValidationJobFailed: No attempt produced a verdict.
        """
        asked, digest = self.config.validation, hashlib.sha256(document).hexdigest()
        spent_usd, failed, left = 0.0, "", self.config.sweep.max_attempts
        for attempt in range(1, _MOST_JOBS + 1):
            request = build_validation_request(self.config, sweep, image_uri, digest, attempt)
            name = request["ProcessingJobName"]
            before = validation_job_status(self.backend, name)
            if before is None:
                if problem := attempt_budget_problem(
                    self.config.sweep.budget_usd, asked, spent_usd, price
                ):
                    raise JobRefused(problem)
                logger.info(
                    "%s: %d x %s, at most %d s",
                    name, asked.instance_count, asked.instance_type, asked.max_runtime_seconds,
                    extra=event_extra("job-submitted", stage="dataset", job=name),
                )  # fmt: skip
            submit_validation_job(self.backend, sweep, request, document)
            ended = watch_validation_job(
                self.backend,
                sweep,
                name,
                self.config.sweep.poll_interval_seconds,
                self.config.sweep.queue_deadline_seconds,
                asked.max_runtime_seconds,
            )
            spent_usd += self._usd(ended, price) or 0.0
            log = self._store_log(sweep, ended)
            was_over = before is not None and before.has_ended
            left -= not (was_over and _was_stopped(ended))
            if ended.completed:
                verdict = read_verdict(self.backend.store, sweep, name)
                if not was_over or not left or not verdict.get("error"):
                    return verdict, self._job_record(ended, price, image_uri, attempt, spent_usd)
                logger.warning("%s did not complete the validation; retrying", name)
                continue
            if is_sweep_stopped(self.backend.store, sweep):
                raise sweep_stopped(sweep)
            failed = failure_text(self.backend, ended, last_own_lines(log))
            is_lasting = not is_retryable(ended.state.capitalize(), ended.reason)
            if not left or (not was_over and is_lasting):
                break
            logger.warning("%s", failed, extra=_OF_DATASET)
        raise ValidationJobFailed(failed)

    def _store_log(self, sweep: str, ended: JobStatus) -> Iterable[LogLine]:
        """Store an ended job's log next to the report; return it, or () if no instances started."""
        if ended.started_at is None:
            return ()
        folder = Path(self.config.report.directory) / sweep / names.LOGS
        return self.backend.read_log(ended, folder)

    def _usd(self, ended: JobStatus, price: Price) -> float | None:
        return node_cost_usd(self.config.validation.instance_count, ended.billed_seconds, price)

    def _job_record(
        self,
        ended: JobStatus,
        price: Price,
        image_uri: str,
        attempt: int,
        spent_usd: float,
    ) -> dict[str, Any]:
        """Return the job's entry in the sweep's record and report; its cost covers all attempts."""
        asked = self.config.validation
        return {
            "job": ended.name,
            "image": image_uri,
            "attempt": attempt,
            "instance_type": asked.instance_type,
            "instance_count": asked.instance_count,
            "billed_seconds": ended.billed_seconds,
            "usd": None if self._usd(ended, price) is None else spent_usd,
        }
