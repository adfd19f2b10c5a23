"""The online preflight as a task."""

from __future__ import annotations

from nodesweep.aws.platform import TASK_OPTIONS
from nodesweep.launch.sagemaker.preflight.online import check_online
from nodesweep.scaling.rules.rule import Facts, Findings
from nodesweep.tasks.task import task


@task(name="preflight-online", **TASK_OPTIONS)
def check_platform(facts: Facts) -> Findings:
    """Run the online preflight rules.

    Queries Service Quotas, SageMaker, EC2, FSx, EFS, IAM, KMS, S3 and ECR.
    """
    return check_online(facts)
