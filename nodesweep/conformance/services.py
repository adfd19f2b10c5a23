"""Checks of other services: a Processing job on Spark, the cost figures, events."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.conformance.check import Bound, Contradicted, NoEvidence, NotYet, Unmet
from nodesweep.conformance.jobs import ONE
from nodesweep.conformance.trial import Trial
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.validation_request import build_validation_request
from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import SECONDS_PER_HOUR, price_of
from nodesweep.scaling.planning.validation import spark_image, validation_bound
from nodesweep.tasks.dataset.spark.contract import report_of, request_document
from nodesweep.tasks.processing.jobs import (
    failure_text,
    read_verdict,
    submit_validation_job,
    watch_validation_job,
)

CODEBUILD_USD_PER_MINUTE = 0.01
"""Price of the stack's default machine, BUILD_GENERAL1_MEDIUM on Linux in us-east-1 (AWS CodeBuild
pricing); larger machines of BuildComputeType cost up to 25 times as much.
"""
REQUEST_USD = 0.01
"""Price of one request to the Cost Explorer API (AWS Cost Management pricing)."""
_NO_SPARK = "no dataset.validation on Spark"
_FIGURES_AFTER = timedelta(hours=24)
"""Cost Explorer refreshes its figures at least once in 24 hours (AWS Cost Management guide)."""


def build_bound(config: BenchmarkConfig) -> Bound:
    """Return the maximum cost of the image build: its time limit times the price of a minute."""
    if config.image.uri is not None:
        return 0.0, "no build, since image.uri is set"
    if config.node_type(config.training.instance_type).emulated:
        return 0.0, "emulated builds cost nothing"
    minutes = config.image.build_timeout_minutes
    return minutes * CODEBUILD_USD_PER_MINUTE, f"{minutes} min x {CODEBUILD_USD_PER_MINUTE} USD/min"


def spark_build_bound(config: BenchmarkConfig) -> Bound:
    """Return the maximum cost of building the Spark image."""
    if config.dataset is None or not config.dataset.may_use_spark:
        return 0.0, _NO_SPARK
    image = spark_image(config.image, config.validation)
    return build_bound(config.model_copy(update={"image": image}))


def minute_bound(config: BenchmarkConfig) -> Bound:
    """Return the maximum cost of a build that is stopped within five minutes."""
    usd, text = build_bound(config)
    return (0.0, text) if not usd else (5 * CODEBUILD_USD_PER_MINUTE, "a build of 5 min")


def processing_bound(config: BenchmarkConfig) -> Bound:
    """Return the maximum cost of the validation, at the training price of the same instance."""
    if config.dataset is None or not config.dataset.may_use_spark:
        return 0.0, _NO_SPARK
    instance = config.node_type(config.validation.instance_type)
    if instance.emulated:
        return 0.0, "emulated nodes cost nothing"
    once = config.sweep.model_copy(update={"max_attempts": 1})
    one = config.model_copy(update={"sweep": once})
    return validation_bound(one, price_of(instance, config.platform.region))


def request_bound(config: BenchmarkConfig) -> Bound:
    """Return the price of a request to Cost Explorer."""
    emulated = config.node_type(config.training.instance_type).emulated
    return (
        (0.0, "emulated nodes have no bill")
        if emulated
        else (REQUEST_USD, "one request to Cost Explorer")
    )


def processing(trial: Trial) -> Mapping[str, Any]:
    """Validate the dataset with the Processing job that a run would start."""
    config, platform = trial.config, trial.platform
    section = config.dataset
    if section is None or not section.may_use_spark:
        raise Unmet("dataset.validation does not select Spark for a dataset in S3")
    there = trial.dataset_in_s3()
    image = trial.built(spark_image(config.image, config.validation))
    document = names.pretty_json(request_document(section, there))
    digest = hashlib.sha256(document).hexdigest()
    request = build_validation_request(config, trial.sweep, image.uri, digest)
    name = request["ProcessingJobName"]
    trial.on_job(name)
    backend = backend_of(platform)
    submit_validation_job(backend, trial.sweep, request, document)
    ended = watch_validation_job(
        backend,
        trial.sweep,
        name,
        config.sweep.poll_interval_seconds,
        config.sweep.queue_deadline_seconds,
        config.validation.max_runtime_seconds,
    )
    if not ended.completed:
        raise NoEvidence(failure_text(backend, ended))
    report = report_of(
        read_verdict(backend.store, trial.sweep, name), section, there, datetime.now(UTC)
    )
    return {
        "success": report.success,
        "objects": len(there.objects),
        "billed_seconds": ended.billed_seconds,
    }


def cost_figures(trial: Trial) -> Mapping[str, Any]:
    """Check that Cost Explorer's node-hours for the day are at least those of the one-node job.

    Raises:
        NotYet: the job ended less than a day ago.
    """
    if trial.instance.emulated:
        raise Unmet("emulated nodes have no bill")
    status = trial.completed(ONE).status
    if status.ended_at is None or not status.billed_node_seconds:
        raise NoEvidence("the job has no billed seconds to compare with")
    if trial.clock.now() - status.ended_at < _FIGURES_AFTER:
        raise NotYet("Cost Explorer shows costs a day later; run this check again tomorrow")
    kind, day = status.instance_type or trial.instance.instance_type, status.ended_at.date()
    platform = trial.platform.model_copy(update={"region": "us-east-1"})
    answer = aws_client("ce", platform).get_cost_and_usage(
        TimePeriod={"Start": str(day), "End": str(day + timedelta(days=1))},
        Granularity="DAILY",
        Metrics=["UnblendedCost", "UsageQuantity"],
        Filter={"Dimensions": {"Key": "SERVICE", "Values": ["Amazon SageMaker"]}},
        GroupBy=[{"Type": "DIMENSION", "Key": "USAGE_TYPE"}],
    )
    usage = re.compile(rf"(?:[A-Z0-9]+-)?Train:{re.escape(kind)}")
    figures = [
        group["Metrics"]
        for of_day in answer["ResultsByTime"]
        for group in of_day.get("Groups", ())
        if usage.fullmatch(group["Keys"][0])
    ]
    hours = sum(float(each["UsageQuantity"]["Amount"]) for each in figures)
    usd = sum(float(each["UnblendedCost"]["Amount"]) for each in figures)
    expected = status.billed_node_seconds / SECONDS_PER_HOUR
    if not figures:
        raise NoEvidence(f"Cost Explorer has no training on {kind} on {day}")
    if hours < 0.99 * expected:
        raise Contradicted(
            f"Cost Explorer has {hours} node-hours for that day, but the job alone used {expected}"
        )
    return {"day": str(day), "node_hours": hours, "usd": usd, "of_the_job": expected}


def by_hand(trial: Trial) -> Mapping[str, Any]:
    """Leave the check open."""
    raise NotYet("this check has to be done by hand")
