"""SageMaker as a backend; imports boto3 and sagemaker-core when they are needed."""

from __future__ import annotations

from typing import Any

from nodesweep.aws.platform import aws_client
from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.protocol import Launcher
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker.logs import read_nodes
from nodesweep.launch.sagemaker.request import render
from nodesweep.launch.sagemaker.results import read_job_metrics
from nodesweep.launch.sagemaker.shape import shape_problems
from nodesweep.launch.sagemaker.status import kind_of_platform
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.sagemaker.utilisation import read_job_utilisation
from nodesweep.scaling.rules.rule import Facts, Findings


def _launcher(platform: PlatformConfig, quick: bool) -> Launcher:
    from nodesweep.launch.sagemaker.batch import training_launcher

    return training_launcher(_client(platform, quick), platform, quick)


def _validations(platform: PlatformConfig, quick: bool) -> Launcher:
    from nodesweep.launch.sagemaker.kind import PROCESSING
    from nodesweep.launch.sagemaker.launcher import SageMakerJobs

    return SageMakerJobs(_client(platform, quick), platform, PROCESSING)


def _client(platform: PlatformConfig, quick: bool) -> Any:
    # aws_client() caches by the arguments as written: quick=False would make a second client.
    if quick:
        return aws_client("sagemaker", platform, quick=True)
    return aws_client("sagemaker", platform)


def _check_account(facts: Facts) -> Findings:
    from nodesweep.launch.sagemaker.preflight.online import check_online

    return check_online(facts)


def _describe_capacity(facts: Facts) -> list[str]:
    from nodesweep.launch.sagemaker.preflight.capacity import describe_capacity
    from nodesweep.launch.sagemaker.preflight.online import clients_of

    return describe_capacity(facts, clients_of(facts.config.platform))


def _code_uri(platform: PlatformConfig, key: str) -> str:
    return f"s3://{platform.bucket}/{key}"


def _send_code(platform: PlatformConfig, key: str, body: bytes) -> str:
    from nodesweep.aws.storage import put_once

    return put_once(aws_client("s3", platform), platform.bucket, key, body)


BACKEND = Backend(
    is_aws=True,
    request="CreateTrainingJob",
    sending_calls=("CreateTrainingJob", "SubmitServiceJob"),
    render=render,
    shape_problems=shape_problems,
    slow_modules=("sagemaker.core.resources",),
    launcher=_launcher,
    validations=_validations,
    store=BucketStore,
    kind=kind_of_platform,
    check_account=_check_account,
    describe_capacity=_describe_capacity,
    read_nodes=read_nodes,
    read_metrics=read_job_metrics,
    read_utilisation=read_job_utilisation,
    code_uri=_code_uri,
    send_code=_send_code,
    shared_folder=lambda platform, folder: None,
)
