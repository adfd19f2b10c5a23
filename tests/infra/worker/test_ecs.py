"""The ECS work pool's template against prefect-aws's own schema, prefect.yaml and the stack whose
outputs it is given.

prefect_aws_schema.json has the names that prefect-aws knows, taken with
`prefect work-pool get-default-base-job-template --type ecs`; prefect-aws itself is not among the
dependencies.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.schema_tools.validation import ValidationError, validate

ROOT = Path(__file__).resolve().parents[3]
TEMPLATE: dict[str, Any] = json.loads(
    (ROOT / "infra/worker/ecs-base-job-template.json").read_text()
)
KNOWN = json.loads(Path(__file__).with_name("prefect_aws_schema.json").read_text())
JOB, VARIABLES = TEMPLATE["job_configuration"], TEMPLATE["variables"]
OF_OURS = {"log_group", "region", "subnets", "security_groups", "assign_public_ip"}
"""Variables that fill in the task definition and the request, beyond those of prefect-aws."""
CONTAINER = JOB["task_definition"]["containerDefinitions"][0]
POOL = yaml.safe_load((ROOT / "prefect.yaml").read_text())["definitions"]["ecs_pool"]
GIVEN = {
    "image": f"123456789012.dkr.ecr.us-east-1.amazonaws.com/nodesweep-worker@sha256:{'0' * 64}",
    "task_role_arn": "arn:aws:iam::123456789012:role/nodesweep-PipelineRole-1",
    "execution_role_arn": "arn:aws:iam::123456789012:role/nodesweep-worker-ExecutionRole-1",
    "cluster": "nodesweep-worker",
    "log_group": "nodesweep-worker",
    "region": "us-east-1",
    "subnets": ["subnet-1"],
    "security_groups": ["sg-1"],
}


class _CloudFormation(yaml.SafeLoader):
    """Short forms of functions as {name: argument}."""


def _function(loader: _CloudFormation, name: str, node: yaml.Node) -> dict[str, Any]:
    return {
        name: node.value if isinstance(node, yaml.ScalarNode) else loader.construct_sequence(node)
    }  # type: ignore[arg-type]


_CloudFormation.add_multi_constructor("!", _function)
STACK = yaml.load((ROOT / "infra/worker/ecs.yaml").read_text(), _CloudFormation)
TASK = STACK["Resources"]["TaskDefinition"]["Properties"]


def test_template_has_the_names_of_prefect_aws() -> None:
    assert set(JOB) <= set(KNOWN["job_configuration"])
    assert set(VARIABLES["properties"]) - OF_OURS <= set(KNOWN["variables"])


def test_every_placeholder_is_a_variable_and_every_variable_is_used() -> None:
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(JOB)))
    assert used == set(VARIABLES["properties"])


def test_task_runs_with_the_pipeline_role_on_a_root_that_is_read_only() -> None:
    definition, request = JOB["task_definition"], JOB["task_run_request"]
    assert definition["taskRoleArn"] == request["overrides"]["taskRoleArn"] == "{{ task_role_arn }}"
    assert definition["executionRoleArn"] == "{{ execution_role_arn }}"
    assert definition["networkMode"] == "awsvpc" and definition["requiresCompatibilities"] == [
        "FARGATE"
    ]
    assert CONTAINER["readonlyRootFilesystem"] is True
    assert CONTAINER["logConfiguration"]["options"]["awslogs-group"] == "{{ log_group }}"


def test_what_is_written_to_are_the_volumes_of_the_image() -> None:
    declared = json.loads(
        re.findall(r"^VOLUME (.+)$", (ROOT / "infra/worker/Dockerfile").read_text(), re.MULTILINE)[
            0
        ]
    )
    assert [mount["containerPath"] for mount in CONTAINER["mountPoints"]] == declared
    assert [
        mount["ContainerPath"] for mount in TASK["ContainerDefinitions"][0]["MountPoints"]
    ] == declared


def test_variables_of_prefect_yaml_fit() -> None:
    """Variables that are filled in from the environment have the value GIVEN."""
    variables = POOL["job_variables"]
    assert (
        {name for name, value in variables.items() if "{{ $" in str(value)}
        == set(GIVEN)
        == set(VARIABLES["required"])
    )
    validate(variables | GIVEN, VARIABLES, raise_on_error=True, preprocess=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_role_arn": ""}, "task_role_arn|does not match"),
        ({"subnets": []}, "should be non-empty"),
        ({"launch_type": "EC2"}, "'EC2' is not one of"),
    ],
)
def test_server_refuses_variables_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        validate(GIVEN | changes, VARIABLES, raise_on_error=True, preprocess=False)


def test_stack_lints() -> None:
    text = (ROOT / "infra/worker/ecs.yaml").read_text()
    import cfnlint.api  # takes seconds

    assert [str(match) for match in cfnlint.api.lint(text, regions=["us-east-1"])] == []


def test_service_runs_the_image_with_the_pipeline_role_and_its_health_check() -> None:
    container = TASK["ContainerDefinitions"][0]
    assert TASK["TaskRoleArn"] == {"Ref": "PipelineRoleArn"}
    assert container["ReadonlyRootFilesystem"] is True
    compose = yaml.safe_load((ROOT / "infra/worker/compose.yaml").read_text())["services"]["worker"]
    assert container["HealthCheck"]["Command"] == compose["healthcheck"]["test"]
    assert f"{container['StopTimeout']}s" == compose["stop_grace_period"]


def test_service_knows_the_servers_password_and_only_the_execution_role_may_read_it() -> None:
    [secret] = TASK["ContainerDefinitions"][0]["Secrets"]
    assert secret == {
        "Name": "PREFECT_API_AUTH_STRING",
        "ValueFrom": {"Ref": "PrefectAuthSecretArn"},
    }
    [policy] = STACK["Resources"]["ExecutionRole"]["Properties"]["Policies"]
    [reads] = [one for one in policy["PolicyDocument"]["Statement"] if one["Sid"] == "ReadPassword"]
    assert (reads["Action"], reads["Resource"]) == (
        "secretsmanager:GetSecretValue",
        {"Ref": "PrefectAuthSecretArn"},
    )


@pytest.mark.parametrize(
    ("arn", "allowed"),
    [
        ("arn:aws:secretsmanager:us-east-1:123456789012:secret:prefect/auth-aB3dE6", True),
        ("arn:aws:secretsmanager:us-east-1:123456789012:secret:*", False),
        ("arn:aws:secretsmanager:us-east-1:123456789012:secret:prefect-??????", False),
        ("arn:aws:secretsmanager:us-east-1:123456789012:secret:prefect/auth", False),
        ("arn:aws:secretsmanager:*:123456789012:secret:prefect-aB3dE6", False),
    ],
)
def test_the_password_is_one_secret_and_no_pattern(arn: str, allowed: bool) -> None:
    pattern = STACK["Parameters"]["PrefectAuthSecretArn"]["AllowedPattern"]
    assert bool(re.fullmatch(pattern, arn)) == allowed


def test_template_names_the_outputs_of_the_stacks() -> None:
    pipeline = yaml.load((ROOT / "infra/aws/nodesweep.yaml").read_text(), _CloudFormation)
    named = set(re.findall(r"utput (\w+)", json.dumps(VARIABLES)))
    assert named == {"PipelineRoleArn", *STACK["Outputs"]}
    assert "PipelineRoleArn" in pipeline["Outputs"]
