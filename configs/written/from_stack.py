"""A config for an account with a deployed stack of infra/aws: a template's text with the outputs of the stack."""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from configs.load import ConfigError

_PLAIN = re.compile(r"[\w./@+=-]+(:[\w./@+=-]+)*")
"""What YAML reads as one string without quotes."""
REQUIRED_OUTPUTS = {
    "BucketName": "bucket",
    "Prefix": "prefix",
    "ExecutionRoleArn": "role_arn",
    "RepositoryName": "repository",
    "CodeBuildProjectName": "codebuild_project",
    "BaseImageRegistry": "base_image_registry",
}
OPTIONAL_OUTPUTS = {
    "KeyArn": "key_arn",
    "SubnetId": "subnet_id",
    "SecurityGroupId": "security_group_id",
    "FileSystemId": "file_system_id",
    "FileSystemPath": "file_system_path",
}


@dataclass(frozen=True)
class Stack:
    """A deployed stack's region and its outputs; None for what it was not asked to make."""

    region: str
    bucket: str
    prefix: str
    role_arn: str
    repository: str
    codebuild_project: str
    base_image_registry: str
    key_arn: str | None = None
    subnet_id: str | None = None
    security_group_id: str | None = None
    file_system_id: str | None = None
    file_system_path: str | None = None

    @classmethod
    def from_outputs(cls, name: str, region: str, outputs: Mapping[str, str]) -> Self:
        """From the outputs by their keys. Raises ConfigError where it is a stack of another template."""
        if missing := [key for key in REQUIRED_OUTPUTS if key not in outputs]:
            raise ConfigError(
                f"the stack {name} in {region} has no output {', '.join(missing)}; "
                "name one that was deployed from infra/aws/nodesweep.yaml"
            )
        known = {**REQUIRED_OUTPUTS, **OPTIONAL_OUTPUTS}
        return cls(region=region, **{known[key]: value for key, value in outputs.items() if key in known})


def fill_template(template: str, stack: Stack, endpoint_url: str | None, template_folder: Path, folder: Path) -> str:
    """The template's text for this stack, its relative paths right for a file in `folder`; both folders absolute.

    The template has its sections in block style, `platform` last. Comments stay.
    """
    sections = sections_of(template)
    for section, key in (("dataset", "source"), ("image", "context")):
        path = os.path.relpath(template_folder / value_of(sections[section], key), folder)
        sections[section] = with_value(sections[section], key, path)
    image = sections["image"]
    base_image = f"{stack.base_image_registry}/{value_of(image, 'base_image').partition('/')[2]}"
    image = with_value(image, "base_image", base_image)
    image = with_value(image, "repository", stack.repository)
    sections["image"] = with_value(image, "codebuild_project", stack.codebuild_project)
    sections["training"] += "".join(f"  {line}\n" for line in _training_lines(stack))
    sections["platform"] = "platform:\n" + "".join(f"  {line}\n" for line in _platform_lines(stack, endpoint_url))
    return "".join(sections.values())


def sections_of(template: str) -> dict[str, str]:
    """The text of each top-level key of a YAML text in block style, in order; "" holds what stands before the first."""
    blocks = re.split(r"(?m)^(?=[a-z_]+:)", template)
    return {"": blocks[0], **{block.partition(":")[0]: block for block in blocks[1:]}}


def _training_lines(stack: Stack) -> list[str]:
    lines = []
    if stack.subnet_id and stack.security_group_id:
        lines.append(f"vpc: {{subnets: [{stack.subnet_id}], security_group_ids: [{stack.security_group_id}]}}")
    if stack.key_arn:
        lines.append(f"output_kms_key_id: {stack.key_arn}")
    if stack.file_system_id and stack.file_system_path:
        path = _scalar(stack.file_system_path)
        lines += ["extra_channels:", f"  fsx: {{type: FSxLustre, id: {stack.file_system_id}, directory_path: {path}}}"]
    return lines


def _platform_lines(stack: Stack, endpoint_url: str | None) -> list[str]:
    values = {
        "region": stack.region,
        "bucket": stack.bucket,
        "prefix": stack.prefix,
        "role_arn": stack.role_arn,
        # An endpoint that stands in for AWS checks no keys.
        **({} if endpoint_url is None else {"endpoint_url": endpoint_url, "credentials": "platform"}),
    }
    return [f"{key}: {_scalar(value)}" for key, value in values.items()]


def value_of(block: str, key: str) -> str:
    """The plain scalar of one of a section's own keys."""
    return _line(block, key)["value"]


def with_value(block: str, key: str, value: str) -> str:
    """The section's text with another scalar for one of its own keys; what stands behind it stays."""
    found = _line(block, key)
    return f"{block[: found.start('value')]}{_scalar(value)}{block[found.end('value') :]}"


def _line(block: str, key: str) -> re.Match[str]:
    found = re.search(rf"(?m)^  {key}: +(?P<value>\S+)", block)
    if found is None:
        raise ValueError(f"the template's section {block.partition(':')[0]} has no line {key!r}")
    return found


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
