"""Fill a config template with the outputs of a deployed stack of infra/aws."""

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
"""Text that YAML reads as one string without quotes."""
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
        """Return the stack with these outputs.

        Args:
            name: Name of the stack, for the error.
            region: Region of the stack.
            outputs: Values by the output keys of infra/aws/nodesweep.yaml.

        Raises:
            ConfigError: A required output is missing, so the stack is from a different template.
        """
        if missing := [key for key in REQUIRED_OUTPUTS if key not in outputs]:
            raise ConfigError(
                f"the stack {name} in {region} has no output {', '.join(missing)}; "
                "choose one that was deployed from infra/aws/nodesweep.yaml"
            )
        return cls(region, outputs)


@dataclass(frozen=True)
class LocalEndpoint:
    """A local platform's URL, and the folder with the key that the platform must prove it holds."""

    url: str
    state_directory: str


def fill_template(
    template: str, stack: Stack, local: LocalEndpoint | None, template_folder: Path, folder: Path
) -> str:
    """Return the template's text for a stack; relative paths are rewritten and comments kept.

    The template has its sections in block style, `platform` last.

    Args:
        template: Text of the template.
        stack: The stack whose outputs fill it.
        local: The local platform that holds the stack; None if it is on AWS.
        template_folder: Absolute folder from which the template's relative paths are resolved.
        folder: Absolute folder of the new file.
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
    """Return the text of each top-level key of block-style YAML, in order.

    The key "" holds the text before the first section.
    """
    blocks = re.split(r"(?m)^(?=[a-z_]+:)", template)
    return {"": blocks[0], **{block.partition(":")[0]: block for block in blocks[1:]}}


def _training_lines(stack: Stack) -> list[str]:
    outputs = stack.outputs
    lines = []
    if outputs.get("SubnetId") and outputs.get("SecurityGroupId"):
        lines.append(
            f"vpc: {{subnets: [{outputs['SubnetId']}], security_group_ids:"
            f" [{outputs['SecurityGroupId']}]}}"
        )
    if outputs.get("KeyArn"):
        lines.append(f"output_kms_key_id: {outputs['KeyArn']}")
    if outputs.get("FileSystemId") and outputs.get("FileSystemPath"):
        path = _scalar(outputs["FileSystemPath"])
        lines += [
            "extra_channels:",
            f"  fsx: {{type: FSxLustre, id: {outputs['FileSystemId']}, directory_path: {path}}}",
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
    """Return the plain scalar of a key directly under a section."""
    return _line(block, key)["value"]


def with_value(block: str, key: str, value: str) -> str:
    """Return the section's text with a new scalar for one of its keys; comments stay."""
    found = _line(block, key)
    return f"{block[: found.start('value')]}{_scalar(value)}{block[found.end('value') :]}"


def _line(block: str, key: str) -> re.Match[str]:
    found = re.search(rf"(?m)^  {key}: +(?P<value>\S+)", block)
    if found is None:
        raise ValueError(f"the template's section {block.partition(':')[0]} has no line {key!r}")
    return found


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
