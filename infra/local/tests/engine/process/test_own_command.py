"""An entry point in the request, on processes: each node has its own /opt/ml and installed
packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from infra.local.tests.engine.engine_bench import Bench, add_environment, once
from sagemaker_emulator.engine.host import containment
from sagemaker_emulator.engine.host.containment import Containment

SHELL = ("/bin/bash", "-c")
USER = 65534
"""The id of nobody, an ordinary user for tests that run as root."""


def image_script(bench: Bench, name: str, start: str) -> None:
    """Return a script of the image's environment, as pip and uv write it, that prints its
    interpreter."""
    script = bench.image / "venv" / "bin" / name
    script.write_text(f"{start}import sys\nprint('{name}', sys.prefix, sys.argv[1:])\n")
    script.chmod(0o755)


@pytest.fixture
def own(bench: Bench) -> Bench:
    """A bench whose image has an environment. Skipped if nodes cannot have a private /opt/ml."""
    if bench.engine._containment.opt_ml_problem:
        pytest.skip(bench.engine._containment.opt_ml_problem)
    add_environment(bench.image)
    return bench


def run(bench: Bench, script: str, nodes: int = 2):
    return bench.run(nodes, container_entrypoint=SHELL, container_arguments=(script,))


@once
def test_each_node_finds_its_own_files_at_opt_ml(own):
    before = sorted(os.listdir("/opt"))
    config = "/opt/ml/input/config/resourceconfig.json"
    result = run(own, f"grep -o '\"algo-[12]\",' {config} | head -1 > /opt/ml/model/who")
    assert (result.failed_host, [end.exit_code for end in result.exits]) == (None, [0, 0])
    written = [(node.opt_ml / "model" / "who").read_text() for node in own.nodes]
    assert written == ['"algo-1",\n', '"algo-2",\n']
    assert sorted(os.listdir("/opt")) == before
    assert [list((node.opt_ml.parent / "opt").iterdir()) for node in own.nodes] in ([[], []], [])


@once
def test_the_rest_of_the_machines_opt_stays_where_it_is_and_is_not_where_it_was_put_aside(own):
    """A program that deletes its folder must not delete this machine's /opt."""
    aside = "$(dirname $SAGEMAKER_BASE_DIR)/opt"
    run(own, f"ls -A /opt; ls -A /opt/ml | head -1; find {aside} -mindepth 1", nodes=1)
    *opt, first_of_opt_ml = own.said("algo-1")
    assert sorted(opt) == sorted({*os.listdir("/opt"), "ml"})
    assert first_of_opt_ml == "checkpoints"


@once
def test_the_images_train_finds_opt_ml_too(own):
    own.program("print(pathlib.Path('/opt/ml/code/train.py').read_text())")
    own.run()
    assert own.said("algo-1") == ["print('trained')"]


@once
def test_scripts_of_the_image_run_under_the_nodes_python(own):
    """torchrun must find packages that were installed on the node, and pip must install there."""
    for name, start in {
        "torchrun": "#!{venv}/bin/python\n",
        "quoted": "#!/bin/sh\n'''exec' '{venv}/bin/python' \"$0\" \"$@\"\n' '''\n",
        "bare": "#!/bin/sh\n'''exec' {venv}/bin/python3 \"$0\" \"$@\"\n' '''\n",
    }.items():
        image_script(own, name, start.format(venv=own.image / "venv"))
    scripts = "torchrun 'a b' c; quoted; bare"
    run(own, f"{scripts}; python -c 'import sys; print(sys.prefix)'", nodes=1)
    prefix = own.nodes[0].opt_ml.parent / "python"
    said = [f"torchrun {prefix} ['a b', 'c']", f"quoted {prefix} []", f"bare {prefix} []"]
    assert own.said("algo-1") == [*said, str(prefix)]


@once
def test_other_scripts_of_the_image_are_the_images(own):
    (own.image / "venv/bin/tool").write_text("#!/bin/sh\necho tool $0\n")
    (own.image / "venv/bin/tool").chmod(0o755)
    run(own, "tool", nodes=1)
    assert own.said("algo-1") == [f"tool {own.image}/venv/bin/tool"]


@once
def test_its_exit_code_and_failure_file_are_the_jobs(own):
    result = run(own, "echo 'ValueError: boom' > /opt/ml/output/failure; exit 7", nodes=1)
    assert (result.failed_host, result.exits[0].exit_code) == ("algo-1", 7)
    assert "ValueError: boom" in result.failure_reason


@once
def test_an_entry_point_that_is_not_there(own):
    result = own.run(container_entrypoint=("/does/not/exist",))
    assert result.exits[0].exit_code == 127
    assert any("/does/not/exist" in line for line in own.said("algo-1"))


@once
def test_it_is_not_waited_for_at_the_boot_barrier(own):
    """Only the image's program waits at the barrier.

    For any other program, the job would wait for four minutes.
    """
    environment = {"SM_BOOT_BARRIER": "1", "SAGEMAKER_PROGRAM": "train.py"}
    (own.image / "image.json").write_text(json.dumps({"environment": environment}))
    run(own, "echo folder=$SM_BOOT_BARRIER_DIR", nodes=1)
    assert own.lines == [("algo-1", "folder=")]


@once
def test_without_namespaces_an_entry_point_is_refused_with_the_reason_and_the_way_out(bench):
    bench.engine._containment = Containment((), "unshare: refused")
    problem = bench.engine.command_problem(SHELL, ("true",))
    assert problem is not None
    assert problem.startswith("ContainerEntrypoint: ")
    assert "(unshare: refused)" in problem
    assert "--engine container" in problem
    assert bench.engine.command_problem((), ()) is None


@once
def test_arguments_alone_have_no_entry_point_to_go_to(bench):
    problem = bench.engine.command_problem((), ("--verbose",))
    assert problem is not None and problem.startswith("ContainerArguments: ")
    assert "Set ContainerEntrypoint too" in problem


def test_a_machine_that_lets_processes_have_no_opt_ml_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(containment, "_SET_OPT_ML", "\necho no mounts today >&2; exit 1\n")
    found = Containment.find(tmp_path)
    assert found.opt_ml_problem == "no mounts today" or not found.unshare
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="root can become an ordinary user, others are one")
def test_an_ordinary_user_has_it_too():
    """The nodes are in a user namespace, if the kernel allows it.

    It is possible that only root can read the Python and the files of the test.
    """
    python = shutil.which("python3", path="/usr/bin:/bin")
    become_user = ["setpriv", f"--reuid={USER}", "--clear-groups"]
    allowed = [*become_user, "unshare", "--mount", "--map-root-user", "true"]
    if python is None or subprocess.run(allowed, check=False).returncode != 0:
        pytest.skip("no Python for everyone, or no namespaces for an ordinary user")
    probe = (
        "import tempfile\nwith tempfile.TemporaryDirectory() as scratch:\n"
        "    print(Containment.find(Path(scratch)).opt_ml_problem)"
    )
    program = f"{Path(containment.__file__).read_text()}\n{probe}"
    done = subprocess.run(
        [*become_user, python, "-c", program],
        env={"PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "None", done.stdout + done.stderr
