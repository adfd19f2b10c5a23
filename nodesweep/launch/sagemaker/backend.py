"""The SageMaker backend, which imports boto3 and sagemaker-core only when they are needed."""

from __future__ import annotations

from nodesweep.configs.models import PlatformConfig
from nodesweep.launch.protocol import Launcher
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker.logs import read_nodes
from nodesweep.launch.sagemaker.request import render
from nodesweep.launch.sagemaker.results import read_job_metrics
from nodesweep.launch.sagemaker.shape import shape_problems
from nodesweep.launch.sagemaker.status import kind_of_arn
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.sagemaker.utilisation import read_job_utilisation
from nodesweep.scaling.rules.rule import Facts, Findings


def _check_account(facts: Facts) -> Findings:
    from nodesweep.launch.sagemaker.preflight.online import check_online

    return check_online(facts)


def _describe_capacity(facts: Facts) -> list[str]:
    from nodesweep.launch.sagemaker.preflight.capacity import describe_capacity
    from nodesweep.launch.sagemaker.preflight.online import clients_of

    return describe_capacity(facts, clients_of(facts.config.platform))


def bind(platform: PlatformConfig) -> Backend:
    """Return the platform's backend."""

    def launcher(quick: bool = False) -> Launcher:
        from nodesweep.launch.sagemaker.batch import training_launcher

        return training_launcher(backend, quick)

    def validations(quick: bool = False) -> Launcher:
        from nodesweep.launch.sagemaker.kind import PROCESSING
        from nodesweep.launch.sagemaker.launcher import SageMakerJobs

        return SageMakerJobs(backend.client("sagemaker", quick), backend, PROCESSING)

    def send_code(key: str, body: bytes) -> str:
        from nodesweep.aws.storage import put_once

        return put_once(backend.client("s3"), platform.bucket, key, body)

    backend = Backend(
        platform,
        is_aws=True,
        request="CreateTrainingJob",
        sending_calls=("CreateTrainingJob", "SubmitServiceJob"),
        store=BucketStore(platform),
        kind=kind_of_arn(platform.role_arn),
        render=lambda spec: render(platform, spec),
        shape_problems=shape_problems,
        slow_modules=("sagemaker.core.resources",),
        launcher=launcher,
        validations=validations,
        check_account=_check_account,
        describe_capacity=_describe_capacity,
        read_nodes=lambda job_name: read_nodes(backend, job_name),
        read_metrics=lambda sweep, job_name: read_job_metrics(backend, sweep, job_name),
        read_utilisation=lambda job: read_job_utilisation(backend, job),
        code_uri=lambda key: f"s3://{platform.bucket}/{key}",
        send_code=send_code,
        shared_folder=lambda folder: None,
    )
    return backend
