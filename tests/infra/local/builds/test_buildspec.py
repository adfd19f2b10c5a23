"""Reading a buildspec, and refusals of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodesweep.infra.local.builds.buildspec import PHASES, BuildspecError, parse_buildspec

OWN = Path(__file__).resolve().parents[4] / "infra" / "image" / "buildspec.yml"


def test_projects_own_buildspec_builds_and_pushes():
    spec = parse_buildspec(OWN.read_text())
    assert "docker build" in spec.phases["build"].commands[0]
    assert spec.phases["post_build"].commands[0].startswith("docker push")
    assert all(spec.phases[name].aborts for name in ("pre_build", "build", "post_build"))


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
    ],
)
def test_what_is_no_buildspec_is_refused_by_name(text, fact):
    with pytest.raises(BuildspecError, match=fact.replace(".", r"\.")):
        parse_buildspec(text)
