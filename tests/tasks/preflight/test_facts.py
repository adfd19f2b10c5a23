"""The facts that are read before a job is sent: the plan, and the files of image and code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.stages.offline import check_offline, check_requests
from nodesweep.scaling.rules.requirements import files_are_there
from nodesweep.tasks.preflight.facts import LocalFiles, read_facts, with_arms
from tests.plain import plain

Configs = Callable[..., BenchmarkConfig]


def test_files_are_read_from_context_and_code(make_config: Configs, tmp_path: Path) -> None:
    context, code = tmp_path / "image", tmp_path / "code"
    for folder in (context / "deep", code):
        folder.mkdir(parents=True)
    (context / "Dockerfile").write_text("ARG BASE_IMAGE=python:3.11\nFROM ${BASE_IMAGE}\n")
    (context / "deep" / "requirements-gpu.txt").write_text("torch\n")
    (context / "notes.txt").write_text("mpi4py\n")
    (code / "requirements.txt").write_text("mpi4py\n")
    config = make_config(image={"context": str(context)}, training={"source_dir": str(code)})
    found = LocalFiles(config).read()
    assert found.base_images == ("python:3.11",)
    assert {Path(path).name: text for path, text in found.packages.items()} == {
        "Dockerfile": "ARG BASE_IMAGE=python:3.11\nFROM ${BASE_IMAGE}\n",
        "requirements-gpu.txt": "torch\n",
        "requirements.txt": "mpi4py\n",
    }
    named = make_config(image={"context": str(context), "base_image": "ours:2"})
    assert LocalFiles(named).read().base_images == ("ours:2",)


def test_reports_in_the_context_are_no_files_of_it(make_config: Configs, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11\n")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "requirements.txt").write_text("mpi4py\n")
    (tmp_path / "reports" / "id_rsa").write_text("")
    reports = {"directory": str(tmp_path / "reports")}
    found = LocalFiles(make_config(image={"context": str(tmp_path)}, report=reports)).read()
    assert (list(found.packages), found.notices) == ([str(tmp_path / "Dockerfile")], ())


def test_image_that_is_given_is_built_of_no_files(make_config: Configs, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11\n")
    found = LocalFiles(
        make_config(image={"context": str(tmp_path), "uri": "docker.io/ours:1"})
    ).read()
    assert (found.base_images, found.packages) == ((), {})


def test_each_file_is_read_once(
    make_config: Configs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    (tmp_path / "requirements.txt").write_text("timm\n-r more.txt\n-r gone.txt\n")
    (tmp_path / "more.txt").write_text("mpi4py\n")
    read: list[str] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or read_bytes(path))
    files = LocalFiles(
        make_config(image={"uri": "docker.io/ours:1"}, training={"source_dir": str(tmp_path)})
    ).read()
    assert sorted(read) == ["more.txt", "requirements.txt"]
    assert files.has_layer and files.requirements is not None
    assert set(files.requirements.files) == {"requirements.txt", "more.txt"}
    [problem] = files.problems
    assert plain(problem, folder=tmp_path) == snapshot


def test_a_container_that_there_is_not_hides_no_other_problem(make_config: Configs) -> None:
    facts = read_facts(make_config(image={"framework": {"version": "9.9"}}))
    [problem] = facts.files.problems
    assert problem.startswith("image.framework: ") and "image.base_image" in problem
    assert len(facts.plan.points) > 0


def test_of_variables_only_the_lengths_of_those_referred_to_are_known(make_config: Configs) -> None:
    config = make_config(
        training={"environment": {"A": "${MINE}", "B": "${NOT_SET}", "C": "plain"}}
    )
    assert read_facts(config).variables is None, "a plan may be made elsewhere"
    assert read_facts(config, {"MINE": "s3cr3t", "OTHER": "x"}).variables == {"MINE": 6}


@pytest.mark.parametrize(
    ("files", "metric", "says"),
    [
        ({"train.py": "print('train_seconds=1;')"}, "loss", False),
        ({"train.py": "print('train_seconds=1;')"}, "planned_steps", True),
        ({"train.py": "", "deep/loop.py": "with clock(steps=epochs * n):"}, "loss", True),
        ({"train.py": "with clock(\n    'out', steps=n\n):"}, "loss", True),
        ({"train.py": "with clock():", "nodesweep_clock.py": "planned_steps"}, "loss", False),
        ({"train.py": "print(f'{planned_steps=};')"}, "loss", True),
        ({"train.py": "", ".git/old.py": "planned_steps", "notes.txt": "planned_steps"}, "loss",
         False),
    ],
)  # fmt: skip
def test_whether_code_can_say_how_many_steps_a_whole_run_makes_shows_in_its_text(
    files: dict[str, str], metric: str, says: bool, make_config: Configs, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    training = {"source_dir": str(tmp_path), "metric_definitions": {metric: "x=([0-9]+)"}}
    sections = {"image": {"uri": "docker.io/ours:1"}, "training": training}
    probing = make_config(sweep={"design": "probe"}, **sections)
    assert read_facts(probing).files.mentions_planned_steps is says
    assert read_facts(make_config(**sections)).files.mentions_planned_steps is None


def test_what_cannot_be_sent_is_said_of_data_code_and_context_at_once(
    make_config: Configs, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    for name in ("image/Dockerfile", "code/train.py", "code/.env", "image/id_rsa", "data/a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("FROM python:3.11\n")
    (tmp_path / "data" / "_old.csv").write_text("")
    config = make_config(
        dataset={"source": str(tmp_path / "data"), "format": "csv"},
        image={"context": str(tmp_path / "image")},
        training={"source_dir": str(tmp_path / "code"), "entry_point": "train.py"},
    )
    said = read_facts(config).files
    assert said.problems == ()
    data, code, context = said.notices
    assert plain(data, folder=tmp_path) == snapshot
    assert "_old.csv" in data
    assert code.startswith("training.source_dir: .env in ")
    assert context.startswith("image.context: id_rsa in ")
    for folder in ("image", "code", "data"):
        (tmp_path / folder / "link").symlink_to("nowhere")
    fields = [problem.partition(":")[0] for problem in read_facts(config).files.problems]
    assert fields == ["dataset.source", "training.source_dir", "image.context"]
    assert check_offline(config).findings.problems[:3] == read_facts(config).files.problems


def test_rules_hold_for_each_type_that_a_job_may_get(make_config: Configs) -> None:
    """This includes other prices, with which the facts of the types are computed again."""
    volume = {"volume_kms_key_id": "alias/mine", "instance_type": "ml.m5.2xlarge"}
    training = {**volume, "instance_fallbacks": ["ml.g5.2xlarge"]}
    config = make_config(training=training, sweep={"budget_usd": 1e6})
    facts = read_facts(config)
    again = with_arms(facts, [config.node_type(name) for name in config.possible_types])
    for made in (facts, again):
        assert [arm.instance.instance_type for arm in made.each] == list(config.possible_types)
        assert [len(arm.arms) for arm in made.each] == [0, 0]
        assert [len(arm.training.instance_fallbacks) for arm in made.each] == [1, 0]
    problems = check_offline(config).findings.problems
    [key] = [each for each in problems if "volume_kms_key_id" in each]
    assert key.startswith("ml.g5.2xlarge: ")  # it trains on its own disks
    assert sum("instance_fallbacks" in each for each in problems) == 1  # other accelerators
    mixed = make_config(training={**training, "instance_fallbacks": ["ml.local.small"]})
    [kinds] = [each for each in check_offline(mixed).findings.problems if "emulated nodes" in each]
    assert kinds.startswith("training.instance_fallbacks: ml.local.small ")


def test_a_notice_is_said_once(make_config: Configs, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "id_rsa").write_text("")
    config = make_config(
        image={"uri": "docker.io/ours:1"},
        training={"source_dir": str(tmp_path), "entry_point": "train.py"},
    )
    checked = check_requests(check_offline(config))
    assert len([said for said in checked.findings.notices if "id_rsa" in said]) == 1


def test_report_directory_that_cannot_be_written_refuses_a_run_and_no_plan(
    make_config: Configs, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "reports").symlink_to(tmp_path / "gone")
    config = make_config(report={"directory": str(tmp_path / "reports")})
    [problem] = files_are_there(read_facts(config, {})).problems
    assert plain(problem, folder=tmp_path) == snapshot
    assert files_are_there(read_facts(config)).problems == ()
