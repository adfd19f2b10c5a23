from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.rules.requirements import (
    files_are_there,
    mpi4py_is_installed,
    own_code_is_unpacked,
)
from nodesweep.scaling.rules.rule import Files
from tests.nodesweep.scaling.rules.facts import facts_of

Configs = Callable[..., BenchmarkConfig]
DLC = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "pytorch-training:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker"
)
MPI = {"distribution": {"kind": "mpi"}, "instance_type": "ml.g5.12xlarge"}


def problems(
    make_config: Configs,
    training: dict[str, Any] = MPI,
    base: str = "python:3.11-slim",
    **packages: str,
) -> list[str]:
    """With packages={"requirements": text}: files of the context by their names less .txt."""
    files = {
        f"image/{name}" + ("" if name == "Dockerfile" else ".txt"): text
        for name, text in packages.items()
    }
    config = make_config(image={"context": "image"}, training=training)
    found = Files((base,) if base else (), files)
    return list(mpi4py_is_installed(facts_of(config, files=found)).problems)


def test_build_without_mpi4py_is_refused(make_config: Configs) -> None:
    expected = (
        "training.distribution.kind: mpi starts every rank with `python -m mpi4py`, and no"
        " requirements*.txt or Dockerfile in image.context image lists mpi4py, nor is the image"
        " built on an AWS Deep Learning Container (python:3.11-slim); add mpi4py to"
        " requirements.txt"
    )
    assert problems(
        make_config, requirements="torch==2.13.0\n", Dockerfile="FROM python:3.11-slim"
    ) == [expected]


def test_own_code_is_named_where_there_is_some(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    [problem] = problems(make_config, {**MPI, "source_dir": "code"})
    assert problem == snapshot


@pytest.mark.parametrize("kind", ["pytorchddp", "smddp", "horovod"])
def test_every_kind_that_mpirun_starts_by_mpi4py(
    make_config: Configs, kind: str, snapshot: SnapshotAssertion
) -> None:
    [problem] = problems(
        make_config, {"distribution": {"kind": kind}, "instance_type": "ml.p4d.24xlarge"}
    )
    assert problem == snapshot


@pytest.mark.parametrize("kind", ["none", "torch_distributed"])
def test_other_kinds_need_none(make_config: Configs, kind: str) -> None:
    assert (
        problems(make_config, {"distribution": {"kind": kind}, "instance_type": "ml.p4d.24xlarge"})
        == []
    )


@pytest.mark.parametrize(
    "line", ["mpi4py", "mpi4py==4.1.2  # for mpirun", "MPI4PY>=3", " mpi4py ; python_version > '3'"]
)
def test_requirement_that_names_it_is_enough(make_config: Configs, line: str) -> None:
    assert problems(make_config, requirements=f"torch\n{line}\n") == []


@pytest.mark.parametrize("line", ["# mpi4py", "mpi4py-fft", "mpi4py_other", "torch  # no mpi4py"])
def test_line_that_does_not_install_it_is_not(make_config: Configs, line: str) -> None:
    assert len(problems(make_config, requirements=line)) == 1


def test_dockerfile_may_install_it(make_config: Configs) -> None:
    assert problems(make_config, Dockerfile="FROM a\nRUN apt-get install -y python3-mpi4py\n") == []
    assert len(problems(make_config, Dockerfile="FROM a\n# mpi4py is not needed\n")) == 1


@pytest.mark.parametrize(
    "base",
    [
        DLC,
        "123456789012.dkr.ecr.us-east-1.amazonaws.com/ours:1",
        "public.ecr.aws/deep-learning-containers/pytorch-training:2.9",
        "",
    ],
    ids=["container of AWS", "built on one, maybe", "public", "unknown"],
)
def test_base_that_may_hold_it_is_not_refused(make_config: Configs, base: str) -> None:
    assert problems(make_config, base=base) == []


def test_image_that_is_not_built_here_is_not_refused(make_config: Configs) -> None:
    config = make_config(image={"uri": "docker.io/ours:1"}, training=MPI)
    assert mpi4py_is_installed(facts_of(config, files=Files(("python:3.11-slim",)))).problems == ()


OWN_CODE: dict[str, Any] = {"image": {"context": "image"}, "training": {"source_dir": "code"}}


def own_code_problems(make_config: Configs, dockerfile: str, **sections: Any) -> list[str]:
    files = {"image/Dockerfile": dockerfile, "image/requirements.txt": "COPY a /opt/ml/code"}
    facts = facts_of(make_config(**{**OWN_CODE, **sections}), files=Files(("base",), files))
    return list(own_code_is_unpacked(facts).problems)


def test_own_code_beside_code_in_the_image_is_refused_with_the_line_and_the_cure(
    make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    line = "COPY train.py /opt/ml/code/train.py"
    assert own_code_problems(make_config, f"FROM base\n{line}\n") == snapshot


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ('add ["a b.py", "/opt/ml/code"]', 1),
        ("COPY a.py \\\n  b.py /opt/ml/code/", 1),
        ("COPY a.py \\\n\n  /opt/ml/code/", 1),
        ("WORKDIR /opt/ml\nCOPY --chown=root train.py code/", 1),
        ("WORKDIR /opt/ml/code\nCOPY . .", 1),
        ("COPY a.py /opt/ml/code/\nFROM base\nCOPY a.py /opt/own/", 0),
        ("FROM base AS first\nCOPY a.py /opt/ml/code/\nFROM first", 1),
        ("COPY train.py /opt/ml/codebase/", 0),
        ("# COPY train.py /opt/ml/code", 0),
        ("ENV SAGEMAKER_SUBMIT_DIRECTORY=/opt/ml/code", 0),
        ("COPY train.py /opt/nodesweep/code/train.py", 0),
        ("COPY a.py /opt/ml/code/\nRUN python <<EOF\nfrom torch import nn\nEOF", 1),
    ],
)
def test_lines_that_put_code_into_the_toolkits_folder(
    make_config: Configs, lines: str, count: int
) -> None:
    assert len(own_code_problems(make_config, f"ARG A=1\nFROM base\n{lines}\n")) == count


def test_own_code_runs_in_the_shipped_image(make_config: Configs) -> None:
    dockerfile = Path(__file__).parents[4] / "infra" / "image" / "Dockerfile"
    assert own_code_problems(make_config, dockerfile.read_text()) == []


def test_own_code_is_not_refused_where_nothing_is_known_or_asked(make_config: Configs) -> None:
    copied = "FROM base\nCOPY train.py /opt/ml/code/train.py\n"
    assert own_code_problems(make_config, copied, training={}) == []
    assert own_code_problems(make_config, copied, image={"uri": DLC}) == []


def test_what_could_not_be_read_is_a_problem_as_it_is(make_config: Configs) -> None:
    facts = facts_of(make_config(), files=Files(problems=("training.source_dir: gone",)))
    assert files_are_there(facts).problems == ("training.source_dir: gone",)
