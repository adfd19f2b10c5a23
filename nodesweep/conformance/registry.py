"""Every check, in order of execution. To add one, write a function and add its row here."""

from __future__ import annotations

from nodesweep.conformance import account, jobs, services
from nodesweep.conformance.check import Check, Paid

_BUILD = Paid("image build", services.build_bound)
_OF_ONE, _OF_TWO = jobs.ONE.paid, jobs.TWO.paid

CHECKS: tuple[Check, ...] = (
    Check(
        "credentials", "the credentials belong to the account of the jobs' role",
        "credentials", account.credentials, gates=True,
    ),
    Check(
        "bucket", "the bucket can be written, and a conditional write never replaces an object",
        "the bucket", account.bucket,
    ),
    Check(
        "role", "the jobs' role exists and trusts SageMaker",
        "iam:GetRole", account.rule("the role"),
    ),
    Check(
        "permissions", "IAM's simulator lets the role do what a job does",
        "iam:SimulatePrincipalPolicy", account.rule("the role's permissions"),
    ),
    Check(
        "quota", "the account's quotas allow two nodes at the same time",
        "servicequotas:ListServiceQuotas", account.rule("service quotas"),
    ),
    Check(
        "price", "the Price List has the price of a node",
        "pricing:GetProducts", account.price,
    ),
    Check(
        "base-image", "this account can read AWS's base image repositories",
        "ecr:BatchGetImage", account.base_image,
    ),
    Check(
        "stack", "CloudFormation created every resource in infra/aws/nodesweep.yaml",
        "the stack, cloudformation:DescribeStackResources", account.stack,
    ),
    Check(
        "image-build", "the image is built and pushed",
        "the CodeBuild project, and an image that is not built yet", jobs.image_build, (_BUILD,),
    ),
    Check(
        "one-node-job", "a job completes and leaves metrics.json",
        "one node", jobs.one_node, (_BUILD, _OF_ONE),
    ),
    Check(
        "adoption", "a repeated request returns the same job instead of creating a second one",
        "one node", jobs.adoption, (_BUILD, _OF_ONE),
    ),
    Check(
        "phases", "the description has the times of the job's phases",
        "one node", jobs.phases, (_BUILD, _OF_ONE),
    ),
    Check(
        "billed-seconds", "the billed seconds do not exceed the job's duration",
        "one node", jobs.billed, (_BUILD, _OF_ONE),
    ),
    Check(
        "log", "an ended job's log can be downloaded",
        "one node", jobs.whole_log, (_BUILD, _OF_ONE),
    ),
    Check(
        "metrics", "CloudWatch has the utilization of the job's node",
        "one node", jobs.utilisation, (_BUILD, _OF_ONE),
    ),
    Check(
        "two-node-job", "the processes of two nodes find each other",
        "two nodes", jobs.two_nodes, (_BUILD, _OF_TWO),
    ),
    Check(
        "stop", "a running job's log can be followed, and the job can be stopped",
        "one node", jobs.stop, (_BUILD, jobs.STOPPED.paid),
    ),
    Check(
        "cancel", "a job that is cancelled right after its submission ends as stopped",
        "one node", jobs.cancel, (_BUILD, jobs.CANCELLED.paid),
    ),
    Check(
        "spot", "a job completes on spot capacity and reports its billed time",
        "a spot quota of one node", jobs.spot, (_BUILD, jobs.SPOT.paid), optional=True,
    ),
    Check(
        "warm-pool", "a job reuses the nodes that an identical job left in its warm pool",
        "a warm pool quota of one node", jobs.warm_pool,
        (_BUILD, jobs.KEPT.paid, jobs.REUSING.paid), optional=True,
    ),
    Check(
        "other-buildspec", "the pipeline role can't make the build project run other commands",
        "the stack's pipeline role, OwnBuildspecs=false", account.other_buildspec,
        (Paid("build that must be refused", services.minute_bound),), optional=True,
    ),
    Check(
        "processing", "Spark's real image validates a dataset in S3",
        "dataset.validation on Spark", services.processing,
        (Paid("Spark image build", services.spark_build_bound),
         Paid("Processing job", services.processing_bound)), optional=True,
    ),
    Check(
        "gpu-nccl", "the GPUs of two nodes exchange gradients over NCCL",
        "a config for a type with GPUs, two nodes", jobs.nccl, (_BUILD, _OF_TWO), optional=True,
    ),
    Check(
        "batch-queue", "AWS Batch names the training job of a queue as nodesweep expects",
        "platform.batch, one node", jobs.batch_queue, (_BUILD, _OF_ONE), optional=True,
    ),
    Check(
        "instance-fallbacks", "a job that names several instance types reports which one it got",
        "training.instance_fallbacks, one node", jobs.instance_fallbacks,
        (_BUILD, _OF_ONE), optional=True,
    ),
    Check(
        "training-plan", "a job completes on the capacity of a training plan",
        "training.training_plan_arn, one node", jobs.training_plan,
        (_BUILD, _OF_ONE), optional=True,
    ),
    Check(
        "cost-figures", "Cost Explorer's node-hours include those of the job",
        "ce:GetCostAndUsage, a day after one-node-job", services.cost_figures,
        (_BUILD, _OF_ONE, Paid("Cost Explorer", services.request_bound)), optional=True,
    ),
    Check(
        "job-events", "EventBridge's event for an ended job starts the deployment collect",
        "a Prefect server that EventBridge reaches over HTTPS", services.by_hand, optional=True,
        by_hand="set up the rule in docs/production.md, run a sweep with --detach, and check that"
        " collect runs",
    ),
)  # fmt: skip
