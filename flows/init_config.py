"""`nodesweep config init`: a config for an account whose stack is deployed. Runs no flow."""

from __future__ import annotations

from pathlib import Path

from configs.from_stack import Stack, fill_template
from configs.load import ConfigError, parse_config
from configs.strict_yaml import parse_yaml
from tasks.files import write_atomic
from tasks.stack import read_outputs, stack_client

TEMPLATE = Path(__file__).resolve().parents[1] / "configs" / "first_sweep.yaml"


def init_config(
    stack_name: str, region: str | None, endpoint_url: str | None, output: Path | None, force: bool = False
) -> str:
    """The config's text, also written to `output` where one is given; its paths are relative to that file.

    Raises ConfigError for an unknown stack, one of another template, and an `output` that exists (less with `force`).
    """
    if output is not None and output.exists() and not force:
        raise ConfigError(f"{output} exists; choose another --output, or replace it with --force")
    client = stack_client(region, endpoint_url)
    stack = Stack.from_outputs(stack_name, client.meta.region_name, read_outputs(client, stack_name))
    folder = Path.cwd() if output is None else output.resolve().parent
    text = fill_template(TEMPLATE.read_text(encoding="utf-8"), stack, endpoint_url, TEMPLATE.parent, folder)
    parse_config(parse_yaml(text), origin=f"the config made of the stack {stack_name}")
    if output is not None:
        write_atomic(output, text.encode())
    return text
