"""A config for an account with a deployed stack of infra/aws:
a template's text with the outputs of the stack.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from nodesweep.configs.load import ConfigError

_PLAIN = re.compile(r"[\w./@+=-]+(:[\w./@+=-]+)*")
"""What YAML reads as one string without quotes."""
REQUIRED_OUTPUTS = (
    "BucketName",
    "Prefix",
    "ExecutionRoleArn",
    "RepositoryName",
    "CodeBuildProjectName",
    "BaseImageRegistry",
)
"""Outputs that every stack of infra/aws/nodesweep.yaml has."""


@dataclass(frozen=True)
class Stack:
    """A deployed stack's region, and its outputs by their keys in infra/aws/nodesweep.yaml."""

    region: str
    outputs: Mapping[str, str]

    @classmethod
    def from_outputs(cls, name: str, region: str, outputs: Mapping[str, str]) -> Self:
        """From the outputs by their keys. Raises ConfigError where it is a stack
        of another template.
        """
        if missing := [key for key in REQUIRED_OUTPUTS if key not in outputs]:
            raise ConfigError(
                f"the stack {name} in {region} has no output {', '.join(missing)}; "
                "name one that was deployed from infra/aws/nodesweep.yaml"
            )
        return cls(region, outputs)


@dataclass(frozen=True)
class LocalEndpoint:
    """A local platform that stands in for AWS, and the folder of the key that it has to prove."""

    url: str
    state_directory: str


def fill_template(
    template: str, stack: Stack, local: LocalEndpoint | None, template_folder: Path, folder: Path
) -> str:
    """The template's text for this stack, its relative paths right for a file in `folder`; both
    folders absolute. `local`: the stack is there, not on AWS.

    The template has its sections in block style, `platform` last. Comments stay.
    """
    sections = sections_of(template)
    for section, key in (("dataset", "source"), ("image", "context")):
        path = os.path.relpath(template_folder / value_of(sections[section], key), folder)
        sections[section] = with_value(sections[section], key, path)
    image = sections["image"]
    base_image = (
        f"{stack.outputs['BaseImageRegistry']}/{value_of(image, 'base_image').partition('/')[2]}"
    )
    image = with_value(image, "base_image", base_image)
    image = with_value(image, "repository", stack.outputs["RepositoryName"])
    sections["image"] = with_value(
        image, "codebuild_project", stack.outputs["CodeBuildProjectName"]
    )
    sections["training"] += "".join(f"  {line}\n" for line in _training_lines(stack))
    sections["platform"] = "platform:\n" + "".join(
        f"  {line}\n" for line in _platform_lines(stack, local)
    )
    return "".join(sections.values())


def sections_of(template: str) -> dict[str, str]:
    """The text of each top-level key of a YAML text in block style, in order; "" holds what stands
    before the first.
    """
    blocks = re.split(r"(?m)^(?=[a-z_]+:)", template)
    return {"": blocks[0], **{block.partition(":")[0]: block for block in blocks[1:]}}


def _training_lines(stack: Stack) -> list[str]:
    given = stack.outputs
    lines = []
    if given.get("SubnetId") and given.get("SecurityGroupId"):
        lines.append(
            f"vpc: {{subnets: [{given['SubnetId']}], security_group_ids:"
            f" [{given['SecurityGroupId']}]}}"
        )
    if given.get("KeyArn"):
        lines.append(f"output_kms_key_id: {given['KeyArn']}")
    if given.get("FileSystemId") and given.get("FileSystemPath"):
        path = _scalar(given["FileSystemPath"])
        lines += [
            "extra_channels:",
            f"  fsx: {{type: FSxLustre, id: {given['FileSystemId']}, directory_path: {path}}}",
        ]
    return lines


def _platform_lines(stack: Stack, local: LocalEndpoint | None) -> list[str]:
    values = {
        "region": stack.region,
        "bucket": stack.outputs["BucketName"],
        "prefix": stack.outputs["Prefix"],
        "role_arn": stack.outputs["ExecutionRoleArn"],
    }
    if local is not None:
        values |= {
            "endpoint_url": local.url,
            "credentials": "platform",
            "state_directory": local.state_directory,
        }
    return [f"{key}: {_scalar(value)}" for key, value in values.items()]


def value_of(block: str, key: str) -> str:
    """The plain scalar of one of a section's own keys."""
    return _line(block, key)["value"]


def with_value(block: str, key: str, value: str) -> str:
    """The section's text with another scalar for one of its own keys;
    what stands behind it stays.
    """
    found = _line(block, key)
    return f"{block[: found.start('value')]}{_scalar(value)}{block[found.end('value') :]}"


def _line(block: str, key: str) -> re.Match[str]:
    found = re.search(rf"(?m)^  {key}: +(?P<value>\S+)", block)
    if found is None:
        raise ValueError(f"the template's section {block.partition(':')[0]} has no line {key!r}")
    return found


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
