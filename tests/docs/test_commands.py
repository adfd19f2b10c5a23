"""Commands and parts of configs in pages run, or are accepted, unchanged.

This covers pages that need no server and no platform; pages that tell one story have separate
tests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nodesweep.cli.main import main
from nodesweep.configs.load import parse_config

REPOSITORY = Path(__file__).resolve().parents[2]
EMULATOR = REPOSITORY / "infra" / "local"
PAGES = {path.name: path.read_text() for path in (REPOSITORY / "docs").glob("*.md")}
GOLDEN = REPOSITORY / "tests" / "nodesweep" / "scaling" / "golden" / "reference.json"
SECTIONS = "dataset|image|training|sweep|platform|report"


def lines_of(page: str, *beginnings: str) -> list[str]:
    """Return the indented lines of a page with this beginning, in order; there must be at least
    one."""
    lines = re.findall(r"^ {4}(\S.*)$", PAGES[page], re.MULTILINE)
    found = [line for line in lines if line.startswith(beginnings)]
    for beginning in beginnings:
        assert any(line.startswith(beginning) for line in found), beginning
    return found


def run(folder: Path, *lines: str) -> str:
    """Run bash in a folder with nodesweep on PATH; return its output. Each command must succeed."""
    own = Path(sys.executable).parent
    environment = {"PATH": f"{own}:{os.environ['PATH']}", "HOME": str(folder), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(("set -euo pipefail", *lines))],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of nodesweep(), an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nodesweep(*lines: str) -> str:
    """Run nodesweep's commands in this process, which saves their imports; return their output."""
    printed = []
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "nodesweep"
        done = CliRunner().invoke(main, words, env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        printed.append(done.stdout)
    return "".join(printed)


def parts_of_configs() -> list[Any]:
    """Return every part of a config in a page, fenced or indented."""
    found = []
    for page, text in sorted(PAGES.items()):
        fenced = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        indented = re.findall(rf"(?:^    (?:{SECTIONS}):\n(?: {{5,}}.*\n)+)+", text, re.MULTILINE)
        for number, part in enumerate([*fenced, *indented], start=1):
            found.append(pytest.param(part, id=f"{page}-{number}"))
    return found


@pytest.mark.parametrize("part", parts_of_configs())
def test_a_part_of_a_config_is_accepted(part: str, raw_config: dict[str, Any]) -> None:
    for name, values in yaml.safe_load(part).items():
        # A design of a sweep rules out what the small valid config has beside it.
        kept = {} if name == "sweep" else raw_config.get(name, {})
        raw_config[name] = {**kept, **values}
    assert parse_config(raw_config, origin="the page").name == raw_config["name"]


def test_there_are_parts_of_configs() -> None:
    assert len(parts_of_configs()) > 10


def modules() -> set[tuple[str, tuple[str, ...]]]:
    """Return (module, options) of every `python -m MODULE …` in the pages."""
    documents = [*PAGES.values(), (REPOSITORY / "CONTRIBUTING.md").read_text()]
    return {
        (module, tuple(re.findall(r"--[a-z][a-z-]*", rest.partition("#")[0])))
        for text in documents
        for module, rest in re.findall(r"python -m ([a-z0-9_.]+[a-z0-9_])([^`\n]*)", text)
        if find_spec(module.partition(".")[0]) is not None
        and any((place / module.partition(".")[0]).is_dir() for place in (REPOSITORY, EMULATOR))
    }


@pytest.mark.parametrize(("module", "options"), sorted(modules()))
def test_a_module_that_is_named_is_there_and_has_the_options(
    module: str, options: tuple[str, ...]
) -> None:
    names = module.split(".")
    # nodesweep.cli lies in nodesweep/cli/, nodesweep.tasks in tasks/
    paths = [REPOSITORY.joinpath(*names[left_out:]) for left_out in (0, 1)]
    paths.append(EMULATOR.joinpath(*names))
    files = [
        file
        for path in paths
        for file in (path / "__main__.py", path.with_suffix(".py"))
        if file.is_file()
    ]
    assert len(files) == 1
    text = files[0].read_text()
    assert [option for option in options if f'"{option}"' not in text] == []


def test_files_that_pages_name_are_there() -> None:
    folders = "benchmarks|configs|docs|examples|flows|infra|nodesweep|tasks|tests"
    named = {
        (page, name)
        for page, text in PAGES.items()
        for name in re.findall(rf"`((?:{folders})/[\w./-]+\.(?:py|yaml|json|sh|md))`", text)
    }
    assert len(named) > 50
    assert [one for one in sorted(named) if not (REPOSITORY / one[1]).is_file()] == []


def test_sweeps_are_compared(here: Path) -> None:
    report = json.loads(GOLDEN.read_text())
    for sweep, image in (("BEFORE", "a"), ("AFTER", "b")):
        folder = here / "reports" / sweep
        folder.mkdir(parents=True)
        report["conditions"]["image_uri"] = image
        (folder / "report.json").write_text(json.dumps(report))
    commands = lines_of("compare.md", "nodesweep compare")
    named = [re.sub(r"\b(BEFORE|AFTER)\b", r"reports/\1", command) for command in commands]
    assert "Cannot alarm" in nodesweep(*named)


@pytest.mark.usefixtures("without_plots")
def test_tables_are_judged(here: Path) -> None:
    tables = re.findall(r"```csv\n(.*?)```", PAGES["measured-tables.md"], re.DOTALL)
    (with_metric,) = (
        table for table in tables if ",final_metric\n1,1,2026-11-26T09:00Z,5940" in table
    )
    (here / "times.csv").write_text(with_metric)
    printed = nodesweep(*lines_of("measured-tables.md", "nodesweep report --csv"))
    assert printed.count("report: ") == 2


def test_an_installed_package_is_tried(here: Path) -> None:
    commands = lines_of("commands.md", *(f"nodesweep {verb}" for verb in ("config", "plan", "run")))
    tried = [command for command in commands if not command.startswith("nodesweep run")]
    assert len(tried) == len(commands) - 1 == 3
    assert "4 jobs" in (said := nodesweep(*tried[:2])) and "ml.local.micro" in said
    run(here, tried[2])
    template = (here / "nodesweep-stack.yaml").read_text()
    assert template.startswith("AWSTemplateFormatVersion")


def test_a_config_is_changed_for_one_run() -> None:
    (options,) = re.findall(r"`(--set [^`]+ --set [^`]+)`", PAGES["config.md"])
    assert "2 jobs" in (said := nodesweep(f"nodesweep plan local {options}"))
    assert "ml.local.micro" in said


def test_pip_gets_the_versions_alone(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").symlink_to(REPOSITORY / "requirements.lock")
    run(tmp_path, *lines_of("commands.md", "grep "))
    versions = (tmp_path / "constraints.txt").read_text().splitlines()
    locked = re.findall(
        r"^[\w.-]+(?:\[[\w,-]+\])?==", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE
    )
    assert len(versions) == len(locked) > 100
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+", version) for version in versions)


def test_shells_are_told_how_to_complete(tmp_path: Path) -> None:
    bash, zsh = lines_of("commands.md", "eval ")
    assert "_nodesweep_completion" in run(tmp_path, bash, "complete -p nodesweep")
    (fish,) = lines_of("commands.md", "_NODESWEEP_COMPLETE=fish")
    asked = re.findall(r"_NODESWEEP_COMPLETE=\w+ nodesweep", f"{zsh}\n{fish}")
    printed = run(tmp_path, *asked)
    assert "#compdef nodesweep" in printed and "complete --no-files --command nodesweep" in printed


def test_deployments_go_to_ecs_and_come_from_git(tmp_path: Path) -> None:
    (tmp_path / "prefect.yaml").symlink_to(REPOSITORY / "prefect.yaml")
    run(tmp_path, *lines_of("production.md", "sed "))
    shipped, ecs, git = (
        yaml.safe_load((tmp_path / name).read_text())
        for name in ("prefect.yaml", "prefect-ecs.yaml", "prefect-git.yaml")
    )
    assert {one["work_pool"]["name"] for one in ecs["deployments"]} == {"nodesweep-ecs"}
    assert git["pull"] == shipped["definitions"]["git_clone"] != shipped["pull"]
    assert [one["name"] for one in git["deployments"]] == [
        one["name"] for one in shipped["deployments"]
    ]


def test_secrets_are_made_where_compose_reads_them(tmp_path: Path) -> None:
    (tmp_path / "infra" / "worker").mkdir(parents=True)
    run(tmp_path, *lines_of("production.md", "mkdir ", "openssl ", 'echo "nodesweep:', "chmod "))
    secrets = tmp_path / "infra" / "worker" / "secrets"
    assert secrets.stat().st_mode & 0o777 == 0o700
    compose = yaml.safe_load((REPOSITORY / "infra" / "worker" / "compose.yaml").read_text())
    read = {Path(secret["file"]).name for secret in compose["secrets"].values()}
    assert {path.name for path in secrets.iterdir()} == read
    assert re.fullmatch(r"nodesweep:[0-9a-f]{48}\n", (secrets / "prefect_auth").read_text())
