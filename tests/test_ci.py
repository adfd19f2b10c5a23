"""The stages of CI end with the first failure, together with parallel stages; a command runs as an
ordinary user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nodesweep.configs.platform import STATE_DIRECTORY

CI = Path(__file__).resolve().parents[1] / ".ci"
STAGES = [
    "make setup",
    "make --jobs=2 --output-sync engines run",
    "make --keep-going --jobs=4 --output-sync containers measured slurm several",
]
BESIDE = (
    "as_user make --jobs=2 --output-sync COVERAGE=1 test namespaces",
    "make --jobs=2 --output-sync lint types",
    "make production",
)
"""All are begun once the first stage has passed."""
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may run a command as somebody else"
)


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the real .ci/run, whose stages only record that they ran; the one in $FAILS
    fails."""
    folder = tmp_path / "checkout"
    record = 'echo "$0 $*" >>"$RAN"; case "$0 $*" in *"$FAILS" | *"$FAILS ") exit 1 ;; esac'
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(CI / "run", folder / ".ci" / "run")
    program(folder / ".ci" / "as_user", record)
    program(folder / ".venv" / "bin" / "python", 'echo "podman is not here"; exit "$NO_CONTAINERS"')
    program(tmp_path / "bin" / "make", record)
    program(tmp_path / "bin" / "dpkg-query", "for package; do echo install ok installed; done")
    return folder


def ci(
    checkout: Path, fails: str = "nothing", *, containers: bool = True
) -> tuple[int, list[str], str]:
    """Run .ci/run; return (exit code, the consecutive stages that began, stderr).

    All parallel stages have run.
    """
    ran = checkout.parent / "ran"
    environment = {
        "PATH": f"{checkout.parent / 'bin'}:{os.environ['PATH']}",
        "RAN": str(ran),
        "FAILS": fails,
        "NO_CONTAINERS": str(int(not containers)),
    }
    done = subprocess.run(
        [checkout / ".ci" / "run"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    stages = [line.rpartition("/")[2].strip() for line in ran.read_text().splitlines()]
    in_order = [stage for stage in stages if stage not in BESIDE]
    beside = [] if in_order == [fails] else sorted(BESIDE)
    assert sorted(stage for stage in stages if stage in BESIDE) == beside
    return done.returncode, in_order, done.stderr


def test_every_stage_runs_in_order_and_the_tests_use_the_environment_of_make_run(
    checkout: Path,
) -> None:
    assert ci(checkout) == (0, STAGES, "")
    of_tests = checkout / ".nodesweep" / "tests" / "venvs"
    assert of_tests.resolve() == checkout / STATE_DIRECTORY / "venvs"


@pytest.mark.parametrize("stage", BESIDE)
def test_a_stage_beside_the_others_fails_the_whole_and_ends_none(
    checkout: Path, stage: str
) -> None:
    code, stages, _ = ci(checkout, stage)
    assert (code, stages) == (1, STAGES)


@pytest.mark.parametrize("number", range(len(STAGES)), ids=STAGES)
def test_a_stage_that_fails_fails_the_whole(checkout: Path, number: int) -> None:
    code, stages, _ = ci(checkout, STAGES[number])
    assert (code, stages) == (1, STAGES[: number + 1])


def test_where_containers_do_not_run_their_tests_say_why(checkout: Path) -> None:
    code, stages, said = ci(checkout, containers=False)
    assert (code, stages) == (0, STAGES)
    assert "NO TEST RAN" in said and "podman is not" in said


def test_what_tests_ask_for_where_it_is_missing_is_installed() -> None:
    """No test is skipped in CI because a package is missing."""
    folders = (CI.parent / "tests", CI.parent / "infra" / "local" / "tests")
    files = [path for folder in folders for path in folder.rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.name.startswith("test_")]
    asked = {
        name for text in texts for name in re.findall(r"apt-get install ([a-z][a-z0-9-]*)", text)
    }
    (installed,) = re.findall(r"^wanted=\((.*)\)$", (CI / "run").read_text(), re.MULTILINE)
    assert {"awscli", "chromium"} <= asked <= set(installed.split())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A committed checkout with the real .ci/as_user, and a package cache that only root may
    read."""
    folder, cache = tmp_path / "checkout", tmp_path / "cache"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(CI / "as_user", folder / ".ci" / "as_user")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "one"]):
        subprocess.run([*git, *command], check=True, timeout=300)
    cache.mkdir(mode=0o700)
    (cache / "package").write_text("a wheel")
    (cache / "sdists-v9" / "pypi" / "built" / "src").mkdir(parents=True)
    (cache / "unused").write_text("of a version that nothing needs any more")
    program(
        folder / ".venv" / "bin" / "uv",
        f"""case "$*" in
            "cache dir") echo {cache} ;;
            "cache prune --quiet") rm {cache}/unused ;;
            *) exit 1 ;;
        esac""",
    )
    program(folder / ".venv" / "lib" / "package" / "__pycache__" / "module.pyc", "bytecode")
    folder.chmod(0o700)
    return folder


def as_user(repository: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script by .ci/as_user, which takes commands in `bin` next to the checkout first."""
    command = [repository / ".ci" / "as_user", "sh", "-euc", script]
    path = f"{repository.parent / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        command,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@needs_root
def test_a_command_runs_as_an_ordinary_user_in_a_clone_and_a_home_of_its_own(
    repository: Path,
) -> None:
    script = (
        "id -u; id -G; pwd; echo $HOME; ls -A; find .venv -type f; cd $HOME/.cache/uv; cat package;"
        " echo; ls . sdists-v9; ls sdists-v9/pypi/built; touch mine ../here"
    )
    done = as_user(repository, script)
    assert (done.returncode, done.stderr) == (0, "")
    user, groups, folder, home, *rest = done.stdout.splitlines()
    assert (user, groups) == ("65534", "65534")
    assert folder != str(repository) and Path(folder).parent == Path(home).parent
    bytecode = ".venv/lib/package/__pycache__/module.pyc"
    assert rest[:5] == [".ci", ".git", ".venv", bytecode, "a wheel"]
    # neither what nothing needs nor the sources of what was built: both may be tens of GB
    assert rest[5:] == [".:", "package", "sdists-v9", "", "sdists-v9:", "pypi"]
    assert not Path(home).parent.exists()


@needs_root
def test_a_command_of_the_user_that_fails_fails_here(repository: Path) -> None:
    assert as_user(repository, "exit 7").returncode == 7
    assert as_user(repository, f"ls {repository}").returncode != 0, (
        "the user may read root's folder"
    )


@needs_root
def test_bytecode_that_is_removed_before_it_is_copied_is_left_out(repository: Path) -> None:
    real, removed = shutil.which("find"), repository / ".venv" / "lib" / "removed.pyc"
    removed.write_text("bytecode")
    found = repository.parent / "found"
    listing = f'{real} "$@" >{found}.$$; rm -f {removed}; cat {found}.$$'
    program(repository.parent / "bin" / "find", listing)
    done = as_user(repository, "echo .venv/lib/*.pyc .venv/lib/package/*/*.pyc")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        ".venv/lib/*.pyc", ".venv/lib/package/__pycache__/module.pyc",
    ]  # fmt: skip


@needs_root
@pytest.mark.parametrize(("code", "is_error"), [(1, False), (2, True)])
def test_files_that_change_while_they_are_copied_are_no_error_but_others_are(
    repository: Path, code: int, is_error: bool
) -> None:
    """GNU tar's exit codes."""
    real = shutil.which("tar")
    script = f'{real} "$@" || exit; case "$*" in *-cf*) exit {code} ;; esac'
    program(repository.parent / "bin" / "tar", script)
    assert (as_user(repository, "true").returncode != 0) == is_error
