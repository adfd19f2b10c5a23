"""The requirements.txt next to the code becomes a further layer of the image, built once, and is
not sent to the jobs."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local.tests.platform_client import client
from infra.local.tests.platform_fakes import IMAGE_URI
from nodesweep.cli.commands.plan import describe_plan, plan_of, requests_of
from nodesweep.cli.guard import explain
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import ImageBuildFailed, InputsChanged
from nodesweep.flows.scaling_benchmark import SweepResult, scaling_benchmark

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]
PROJECT = "nodesweep-image"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("import timm\n")
    (folder / "requirements.txt").write_text("timm==1.0\n")
    return folder


def builds(served: SimpleNamespace) -> list[str]:
    return list(
        client(served.endpoint, "codebuild").list_builds_for_project(projectName=PROJECT)["ids"]
    )


def sent(served: SimpleNamespace, result: SweepResult) -> tuple[str, list[str]]:
    """Return the image of the sweep's first job, and the files of the code that the job was
    sent."""
    job = served.sagemaker.describe_training_job(TrainingJobName=result.report.points[0].job_name)
    bucket, _, key = (
        job["HyperParameters"]["sagemaker_submit_directory"]
        .strip('"')
        .removeprefix("s3://")
        .partition("/")
    )
    body = client(served.endpoint, "s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        return job["AlgorithmSpecification"]["TrainingImage"], sorted(archive.getnames())


@pytest.mark.usefixtures("new_image")
def test_a_second_sweep_builds_and_sends_nothing_and_a_changed_requirement_is_a_change(
    served: SimpleNamespace, pipeline_config: Configs, code: Path
) -> None:
    config = pipeline_config("scaling", sweep={"node_counts": [1]}, training={"source_dir": "code"})
    before = builds(served)
    first = scaling_benchmark(config)
    assert len(builds(served)) == len(before) + 2, "the context's image, and the layer on it"
    image, files = sent(served, first)
    assert files == ["train.py"]
    provenance = first.report.provenance
    assert provenance["image_uri"] == image != provenance["image_base_uri"]
    datasets = {"Bucket": config.platform.bucket, "Prefix": "nodesweep/datasets/"}
    data = served.s3.list_objects_v2(**datasets)["Contents"]
    (code / "train.py").write_text("import timm  # another program\n")
    second = scaling_benchmark(config)
    assert served.s3.list_objects_v2(**datasets)["Contents"] == data
    assert len(builds(served)) == len(before) + 2 and sent(served, second)[0] == image
    assert scaling_benchmark(config, sweep_id=second.sweep_id).sweep_id == second.sweep_id, (
        "nothing has changed"
    )
    for text in ("timm==1.1\n", "./own\n", ""):
        (code / "requirements.txt").write_text(text)
        with pytest.raises(InputsChanged, match=r"training\.source_dir: requirements\.txt "):
            scaling_benchmark(config, sweep_id=second.sweep_id)
    assert len(builds(served)) == len(before) + 2


def test_an_image_that_is_given_gets_the_layer_where_there_is_a_repository_for_it(
    served: SimpleNamespace, pipeline_config: Configs, code: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def config(repository: str, **platform: Any) -> BenchmarkConfig:
        sections: dict[str, Any] = {
            "sweep": {"node_counts": [1]},
            "training": {"source_dir": "code"},
        }
        return pipeline_config(
            "scaling",
            image={"uri": IMAGE_URI, "repository": repository},
            platform=platform,
            **sections,
        )

    image, files = sent(served, scaling_benchmark(config("layers")))
    assert "/layers@sha256:" in image and files == ["train.py"]
    nowhere = scaling_benchmark(config("nowhere", create_missing=False))
    assert sent(served, nowhere) == (IMAGE_URI, ["requirements.txt", "train.py"])
    for said in (nowhere.report.caveats[-1], caplog.text):
        assert "'nowhere' (image.repository)" in said
    (code / "requirements.txt").write_text("timm==1.1\n")
    with pytest.raises(InputsChanged, match=r"training\.source_dir: (?!requirements)"):
        scaling_benchmark(config("nowhere", create_missing=False), sweep_id=nowhere.sweep_id)


def test_packages_that_can_not_be_installed_end_the_run_with_the_files_name(
    served: SimpleNamespace, pipeline_config: Configs, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nodesweep.tasks.image.packages._dockerfile",
        lambda *_: "BREAK\nARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n",
    )
    with pytest.raises(ImageBuildFailed) as raised:
        scaling_benchmark(
            pipeline_config("scaling", image={"uri": IMAGE_URI}, training={"source_dir": "code"})
        )
    message, exit_code = explain(raised.value)
    assert exit_code == 1
    for word in (str(code / "requirements.txt"), IMAGE_URI, "no such package"):
        assert word in message


def test_plan_and_requests_show_the_layer(pipeline_config: Configs, code: Path) -> None:
    config = pipeline_config("scaling", image={"uri": IMAGE_URI}, training={"source_dir": "code"})
    checked = plan_of(config)
    assert f"packages: {code / 'requirements.txt'} " in describe_plan(checked)
    assert "layer" in describe_plan(checked)
    request = requests_of(config, checked).requests[0]
    assert "/nodesweep@sha256:000" in request["AlgorithmSpecification"]["TrainingImage"]
    unsure = pipeline_config(
        "scaling",
        image={"uri": IMAGE_URI},
        training={"source_dir": "code"},
        platform={"create_missing": False},
    )
    assert "nodesweep (image.repository)" in (said := describe_plan(plan_of(unsure)))
    assert "plan --online" in said
    (code / "requirements.txt").write_text("./own\n")
    checked = plan_of(config)
    assert "./own" in describe_plan(checked)
    alone = requests_of(config, checked).requests[0]
    assert alone["AlgorithmSpecification"]["TrainingImage"] == IMAGE_URI
    where = "sagemaker_submit_directory"
    assert alone["HyperParameters"][where] != request["HyperParameters"][where]
    (code / "requirements.txt").write_text("-r gone.txt\n")
    assert any("gone.txt" in problem for problem in plan_of(config).findings.problems)
