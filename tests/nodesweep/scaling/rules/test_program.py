"""Entry points that the SageMaker toolkit (sagemaker-training 5.1.4) can start."""

from __future__ import annotations

import pytest

from nodesweep.scaling.rules.offline import check
from nodesweep.scaling.rules.rule import Files
from tests.nodesweep.scaling.rules.facts import facts_of

TORCHRUN = {"kind": "torch_distributed", "processes_per_node": 1}
PLAIN = {"kind": "none"}
MPI = {"kind": "mpi", "processes_per_node": 1}


@pytest.mark.parametrize(
    "entry_point",
    [
        "train v2.py",
        "train (1).py",
        "entraînement.py",
        "src\\train.py",
        "a;b.py",
        "-train.py",
        "./",
        ".src/train.py",
        "src/__pycache__/train.py",
        ".train.py",
    ],
)
def test_an_entry_point_that_no_job_could_start_is_refused(entry_point, check_config, snapshot):
    training = {"entry_point": entry_point, "source_dir": "code"}
    [problem] = check_config(training=training).problems
    assert problem.startswith("training.entry_point: ")
    assert problem == snapshot


@pytest.mark.parametrize(
    ("entry_point", "kept"),
    [
        ("./train.py", "train.py"),
        ("src//./train.py", "src/train.py"),
        ("train_v2.1+cu-12.py", "train_v2.1+cu-12.py"),
        ("src/-odd.py", "src/-odd.py"),
    ],
)
def test_a_path_is_written_plainly_and_starts(entry_point, kept, check_config, make_config):
    training = {"entry_point": entry_point, "source_dir": "code"}
    assert make_config(training=training).training.entry_point == kept
    assert check_config(training=training).problems == ()


@pytest.mark.parametrize(
    ("distribution", "entry_point"),
    [(TORCHRUN, "train.py"), (PLAIN, "src/train.py"), (PLAIN, "train.py"), (PLAIN, "run.sh")],
)
def test_a_setup_py_makes_a_package_of_the_code(distribution, entry_point, make_config, snapshot):
    training = {"entry_point": entry_point, "source_dir": "code", "distribution": distribution}
    found = check(facts_of(make_config(training=training), files=Files(has_setup=True)))
    assert found.problems == snapshot
    is_hinted = any("setup.py" in hint for hint in found.hints)
    assert is_hinted == (distribution == PLAIN and entry_point != "run.sh")


def test_what_files_show_of_the_entry_point_is_a_problem(make_config, snapshot):
    config = make_config(training={"source_dir": "code"})
    found = check(facts_of(config, files=Files(entry_point_problem="it is not there")))
    assert found.problems == snapshot
