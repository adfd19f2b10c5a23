"""Buildspecs that are accepted, and buildspecs that are refused."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sagemaker_emulator.builds.buildspec import PHASES, BuildspecError, parse_buildspec
from sagemaker_emulator.builds.execution import BuildExecution, PhaseFailure


def execution_of(buildspec: str | None, **variables: str) -> BuildExecution:
    """Return the execution of a build with these variables."""
    build: Any = SimpleNamespace(
        region="us-east-1",
        buildspec=buildspec,
        variables=[{"name": name, "value": value} for name, value in variables.items()],
        variable=lambda *names: next(
            (variables[name] for name in names if name in variables), None
        ),
    )
    nothing: Any = lambda *_: None  # noqa: E731
    return BuildExecution(build, nothing, nothing, nothing, threading.Event())


def test_dockerfile_alone_is_built_and_pushed(tmp_path: Path):
    """The log shows the commands, so they must not contain the values of build arguments."""
    variables = {"IMAGE_REPO_URI": "127.0.0.1:5000/a b", "BUILD_ARG_BASE": "s3cr3t"}
    spec = execution_of(None, **variables, **{"BUILD_ARG_x-y": "no name"})._read_buildspec(tmp_path)
    build, push = spec.phases["build"].commands
    image = "'127.0.0.1:5000/a b:latest'"
    assert build == f'docker build --build-arg BASE="$BUILD_ARG_BASE" --tag {image} .'
    assert push == f"docker push {image}"
    assert tuple(spec.phases) == PHASES and spec.phases["build"].aborts
    with pytest.raises(PhaseFailure, match="IMAGE_REPO_URI or IMAGE_REPO_NAME"):
        execution_of(None)._read_buildspec(tmp_path)


def test_buildspec_of_the_source_goes_before_its_dockerfile(tmp_path: Path):
    (tmp_path / "buildspec.yml").write_text("version: 0.2\nphases: {build: {commands: [make]}}")
    assert execution_of(None)._read_buildspec(tmp_path).phases["build"].commands == ("make",)


def test_left_out_phases_are_empty_and_failures_go_on():
    spec = parse_buildspec("version: 0.2\nphases: {build: {commands: [make], finally: [clean]}}")
    assert tuple(spec.phases) == PHASES
    assert spec.phases["install"].commands == ()
    build = spec.phases["build"]
    assert (build.commands, build.final_commands, build.aborts) == (("make",), ("clean",), False)


def test_variables_are_text():
    spec = parse_buildspec("version: 0.2\nenv: {variables: {JOBS: 2}}\nphases: {}")
    assert spec.variables == {"JOBS": "2"}


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("version: 0.1", "0.1"),
        ("- a", "mapping"),
        ("a: [", "YAML_FILE_ERROR"),
        ("version: 0.2\nphase: {}", "'phase'"),
        ("version: 0.2\nphases: {test: {}}", "'test'"),
        ("version: 0.2\nphases: {build: {command: [a]}}", "phases.build.command"),
        ("version: 0.2\nphases: {build: {commands: make}}", "phases.build.commands"),
        ("version: 0.2\nphases: {build: {on-failure: RETRY}}", "'RETRY'"),
        ("version: 0.2\nenv: {secrets-manager: {A: b}}", "env.secrets-manager"),
        ("version: 0.2\nenv: {shell: bash}", "env.shell: is 'bash'"),
    ],
)
def test_what_is_no_buildspec_is_refused_by_name(text, fact):
    with pytest.raises(BuildspecError, match=fact.replace(".", r"\.")):
        parse_buildspec(text)
