"""The online preflight as a task."""

from __future__ import annotations

from nodesweep.aws.platform import TASK_OPTIONS
from nodesweep.launch.registry import backend_of
from nodesweep.scaling.rules.rule import Facts, Findings
from nodesweep.tasks.task import task


@task(name="preflight-online", **TASK_OPTIONS)
def check_platform(facts: Facts) -> Findings:
    """Run the online preflight rules.

    Of AWS they query Service Quotas, SageMaker, EC2, FSx, EFS, IAM, KMS, S3 and ECR.
    """
    return backend_of(facts.config.platform).check_account(facts)
