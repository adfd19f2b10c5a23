"""The Spark image's context, and the options, refusals and messages of its `smspark-submit`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nodesweep.infra.image_spark import nodesweep_judge
from sagemaker_emulator.engine.process.dockerfile import Install, parse
from tests.hadolint import hadolint

IMAGE = Path(nodesweep_judge.__file__).resolve().parents[1]


@pytest.fixture
def smspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with a separate /opt/ml for the test."""
    spec = importlib.util.spec_from_file_location(
        "smspark_submit", IMAGE / "smspark" / "smspark_submit.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "output").mkdir()
    monkeypatch.setattr(module, "OPT_ML", tmp_path)
    return module


def test_dockerfile_has_no_finding_and_installs_what_is_asked_for() -> None:
    assert hadolint(IMAGE / "Dockerfile") == (0, "")
    arguments = {"REQUIREMENTS": "requirements-emulated.txt"}
    recipe = parse((IMAGE / "Dockerfile").read_text(), arguments)
    assert recipe.installs == [Install(("/opt/nodesweep/requirements-emulated.txt",), ())]
    assert "sagemaker-spark-processing:" in (recipe.base or "")
    assert recipe.environment["NODESWEEP_PROGRAMS"] == recipe.folder == "/opt/nodesweep"
    placed = {copy.sources: copy.target for copy in recipe.copies}
    assert placed[("validate_dataset.py",)] == "/opt/nodesweep/"
    assert placed[("nodesweep_judge",)] == "/opt/nodesweep/nodesweep_judge"


def test_the_application_keeps_its_own_options(smspark: ModuleType) -> None:
    options = smspark.parse(
        ["--local-spark-event-logs-dir", "/events", "/app.py", "--jars", "x", "-v"]
    )
    assert (options.app, options.arguments) == ("/app.py", ["--jars", "x", "-v"])
    assert str(options.local_spark_event_logs_dir) == "/events"
    assert options.jars is None


def test_a_folder_stands_for_its_files(smspark: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "py-files"
    folder.mkdir()
    for name in ("b.py", "a.py"):
        (folder / name).touch()
    options = smspark.parse(["--py-files", str(folder), "/app.py"])
    assert options.py_files == f"{folder}/a.py,{folder}/b.py"


@pytest.mark.parametrize(
    "arguments", [["--class", "Main"], ["--spark-event-logs-s3-uri", "s3://bucket/logs"]]
)
def test_what_is_not_emulated_is_refused_in_the_exit_message(
    smspark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["smspark-submit", *arguments, "/app.jar"])
    with pytest.raises(SystemExit) as ended:
        smspark.main()
    assert ended.value.code == 1
    said = (tmp_path / "output" / "message").read_text()
    assert said.startswith(f"{arguments[0]} ")


def test_without_java_the_refusal_says_what_to_install(
    smspark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["smspark-submit", "/app.py"])
    with pytest.raises(SystemExit):
        smspark.main()
    said = (tmp_path / "output" / "message").read_text()
    assert "apt-get install openjdk-17-jre-headless" in said


def test_properties_of_the_jobs_configuration(
    smspark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "configuration.json"
    assert smspark.configured_properties(file) == {}
    own = {"Classification": "spark-defaults", "Properties": {"spark.executor.memory": "1g"}}
    file.write_text(json.dumps([own, {"Classification": "hive-site", "Properties": {}}]))
    assert smspark.configured_properties(file) == {"spark.executor.memory": "1g"}
    assert "ignoring classification hive-site" in capsys.readouterr().out
