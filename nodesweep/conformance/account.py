"""Checks that run no jobs: credentials, role, quota, bucket, price, base images, stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from nodesweep.aws.platform import aws_client
from nodesweep.conformance.check import Contradicted, NoEvidence, Shape, Unmet
from nodesweep.conformance.trial import Trial
from nodesweep.errors import error_code
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.preflight.online import ACCOUNT_RULES, run_account_rules
from nodesweep.launch.sagemaker.preflight.rule import RuleContext
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.scaling import names
from nodesweep.scaling.formats import agree
from nodesweep.tasks.image.bases import pin_base_images
from nodesweep.tasks.image.find import Images, read_context
from nodesweep.tasks.report.pricing import NoPrice, query_price

LARGEST = Shape("two-node job", nodes=2)


def credentials(trial: Trial) -> Mapping[str, Any]:
    """Check that the credentials belong to the account of the jobs' role."""
    answer = trial.client("sts").get_caller_identity()
    if answer["Account"] != trial.platform.account_id:
        raise Contradicted("the credentials belong to a different account than the jobs' role")
    return {"identity": answer["Arn"].split(":")[5].split("/")[0]}


def rule(name: str) -> Callable[[Trial], Mapping[str, Any]]:
    """Return a check that passes if the preflight rule of that name has no findings."""
    [asked] = [each for each in ACCOUNT_RULES if each.name == name]

    def run(trial: Trial) -> Mapping[str, Any]:
        facts = trial.facts(LARGEST)
        if trial.instance.emulated or not asked.needed(facts):
            raise Unmet(f"preflight does not check {name} for {trial.instance.instance_type}")
        found = run_account_rules(RuleContext(facts, trial.client), [asked])
        if found.problems:
            raise Contradicted("; ".join(found.problems))
        if found.notices:
            raise NoEvidence("; ".join(found.notices))
        return {"asked": asked.action}

    return run


def bucket(trial: Trial) -> Mapping[str, Any]:
    """Check that a conditional write does not replace an existing object."""
    store = BucketStore(trial.platform, client=trial.client("s3"))
    store.prepare()
    key = names.sweep_prefix(trial.platform.prefix, trial.sweep) + "conformance"
    store.put(key, b"first")
    if store.put(key, b"second", only_if_absent=True) or store.get(key) != b"first":
        raise Contradicted("a conditional write replaced an object: IfNoneMatch is ignored")
    store.delete(key)
    return {"conditional write": "refused with 412"}


def price(trial: Trial) -> Mapping[str, Any]:
    """Read the current price of a node from the Price List."""
    if trial.instance.emulated:
        raise Unmet("an emulated node has no price")
    platform = trial.platform.model_copy(update={"region": "us-east-1"})
    name, region = trial.instance.instance_type, trial.platform.region
    try:
        usd = query_price(aws_client("pricing", platform), name, region)
    except NoPrice as error:
        raise NoEvidence(str(error)) from error
    return {"instance_type": name, "region": region, "usd_per_hour": usd}


def base_image(trial: Trial) -> Mapping[str, Any]:
    """Read the digests of the base images from AWS's repositories."""
    config = trial.facts(LARGEST).config
    if trial.instance.emulated or config.image.uri is not None:
        raise Unmet("the image has no base image in another account")
    pinned = pin_base_images(
        Images(backend_of(trial.platform), config.image), config.image.all_build_args
    )
    bases = read_context(config.image, pinned, config.own_folders).bases
    if not pinned:
        raise NoEvidence(f"the registry returned no digest for {', '.join(bases)}")
    return {"bases": list(bases)}


_PARTS = ("AWS::S3::Bucket", "AWS::S3::BucketPolicy", "AWS::CodeBuild::Project", "AWS::IAM::Role")


def stack(trial: Trial) -> Mapping[str, Any]:
    """Check that all resources of the bucket's stack exist and are deployed."""
    try:
        answer = trial.client("cloudformation").describe_stack_resources(
            PhysicalResourceId=trial.platform.bucket
        )
    except ClientError as error:
        if error_code(error) == "ValidationError":
            raise Unmet(f"the bucket does not belong to a stack: {error}") from error
        raise
    parts = answer["StackResources"]
    if unknown := [each for each in parts if "ResourceStatus" not in each]:
        verb = agree(len(unknown), "has", "have")
        raise NoEvidence(f"{len(unknown)} of {len(parts)} resources of the stack {verb} no status")
    states = {each["LogicalResourceId"]: each for each in parts}
    bad = [
        f"{name}: {state}"
        for name, each in states.items()
        if not (state := each["ResourceStatus"]).endswith("_COMPLETE") or "ROLLBACK" in state
    ]
    if bad:
        raise Contradicted("; ".join(bad))
    missing = set(_PARTS) - {each["ResourceType"] for each in states.values()}
    if missing:
        raise NoEvidence(f"the stack lacks {', '.join(sorted(missing))}")
    return {name: each["ResourceType"] for name, each in sorted(states.items())}


def other_buildspec(trial: Trial) -> Mapping[str, Any]:
    """Check that the stack's pipeline role may not start a build with a different buildspec."""
    if trial.instance.emulated:
        raise Unmet("with emulated nodes, no role limits the builds")
    codebuild = trial.client("codebuild")
    try:
        build = codebuild.start_build(
            projectName=trial.config.image.codebuild_project,
            buildspecOverride="version: 0.2\nphases: {build: {commands: ['true']}}\n",
            sourceTypeOverride="NO_SOURCE",
            timeoutInMinutesOverride=5,
        )["build"]
    except ClientError as error:
        if error_code(error) == "AccessDeniedException":
            return {"refused": str(error)}
        if error_code(error) == "ResourceNotFoundException":
            raise Unmet(str(error)) from error
        raise
    codebuild.stop_build(id=build["id"])
    raise NoEvidence(
        "the build was accepted (and has been stopped); with OwnBuildspecs=false, the stack's "
        "pipeline role must not be able to start a build with its own buildspec"
    )
