"""Code, metrics and logs in the shared folder."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nodesweep.errors import BackendUnavailable
from nodesweep.launch.slurm import inputs
from nodesweep.launch.slurm.backend import bind
from nodesweep.launch.slurm.inputs import code_uri, read_metrics, send_code
from nodesweep.scaling.job import JobStatus
from nodesweep.tasks.jobs.source import pack
from tests.nodesweep.launch.slurm.cluster import CODE, slurm_platform

KEY = "nodesweep/code/0123456789abcdef/sourcedir.tar.gz"
JOB = "bench-20260102030405-0123abcd-n2-r1-a1-abcd"


def completed() -> JobStatus:
    """Return the status of a job whose log has settled, and is not final yet."""
    return JobStatus(JOB, "completed", ended_at=datetime.now(UTC) - timedelta(minutes=30))


def test_code_is_unpacked_once_with_the_clock(tmp_path: Path) -> None:
    platform = slurm_platform(tmp_path)
    body = pack(CODE, "sweep.py")
    place = Path(send_code(platform.folder, KEY, body))
    assert str(place) == code_uri(platform.folder, KEY)
    assert (place / "sweep.py").read_bytes() == (CODE / "sweep.py").read_bytes()
    assert (place / ".nodesweep" / "nodesweep_clock.py").is_file()
    assert (place / ".nodesweep" / "sitecustomize.py").is_file()
    before = (place / "sweep.py").stat().st_ino
    assert send_code(platform.folder, KEY, body) == str(place)
    assert (place / "sweep.py").stat().st_ino == before
    assert [path.name for path in place.parent.iterdir()] == [place.name], "nothing is left over"


def test_of_two_runs_that_unpack_the_same_code_both_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, body, rename = slurm_platform(tmp_path), pack(CODE, "sweep.py"), inputs.os.rename

    def other_first(source: Path, target: Path) -> None:
        monkeypatch.setattr(inputs.os, "rename", rename)
        send_code(platform.folder, KEY, body)
        rename(source, target)

    monkeypatch.setattr(inputs.os, "rename", other_first)
    assert Path(send_code(platform.folder, KEY, body), "sweep.py").is_file()


def test_a_folder_that_cannot_be_written_is_an_error_of_the_backend(tmp_path: Path) -> None:
    (tmp_path / "nodesweep").write_text("in the way")
    with pytest.raises(BackendUnavailable):
        send_code(slurm_platform(tmp_path).folder, KEY, pack(CODE, "sweep.py"))


def test_metrics_are_those_nearest_to_the_output_folder(tmp_path: Path) -> None:
    platform, output = slurm_platform(tmp_path), tmp_path / JOB / "output"
    assert read_metrics(platform, "bench", JOB) is None
    for place, seconds in ((output / "data" / "deep", 2), (output / "data", 1)):
        place.mkdir(parents=True, exist_ok=True)
        (place / "metrics.json").write_text(json.dumps({"seconds": seconds, "budget": [{}]}))
    (output / "data" / "nodesweep-budget-1.json").write_text('{"rank": 1}')
    assert read_metrics(platform, "bench", JOB) == {"seconds": 1, "budget": [{}, {"rank": 1}]}
    (output / "data" / "metrics.json").write_text("[" * 50 + "]" * 50)
    assert read_metrics(platform, "bench", JOB) is None
    (output / "data" / "metrics.json").write_bytes(b" " * (inputs.MAX_METRICS_BYTES + 1))
    assert read_metrics(platform, "bench", JOB) is None


def test_a_log_is_saved_for_each_node_and_its_middle_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, job = slurm_platform(tmp_path / "shared"), tmp_path / "shared" / JOB
    job.mkdir(parents=True)
    (job / "script.log").touch()
    (job / "node-0.log").write_text("first\nlast\n")
    (job / "node-1.log").write_text("aaaa\n" * 10)
    monkeypatch.setattr(inputs, "_FIRST_BYTES", 10)
    monkeypatch.setattr(inputs, "_LAST_BYTES", 5)
    lines = list(bind(platform).read_log(completed(), tmp_path / "logs"))
    assert [line.text for line in lines if line.host == "node-0"] == ["first", "last"]
    texts = [line.text for line in lines if line.host == "node-1"]
    assert texts[:2] == ["aaaa", "aaaa"] and texts[3:] == ["aaaa"] and "35 bytes" in texts[2]
    assert [path.name for path in bind(platform).save_log(JOB, tmp_path / "logs")] == [
        "n2-r1-a1-abcd_node-0.log", "n2-r1-a1-abcd_node-1.log",
    ]  # fmt: skip


def test_a_nodes_file_that_the_file_system_shows_late_is_read(tmp_path: Path) -> None:
    platform, job = slurm_platform(tmp_path / "shared"), tmp_path / "shared" / JOB
    job.mkdir(parents=True)
    for node in range(2):
        (job / f"node-{node}.log").write_text("a line\n")
        lines = bind(platform).read_log(completed(), tmp_path / "logs")
        assert [line.host for line in lines] == [f"node-{each}" for each in range(node + 1)]


def test_a_saved_log_does_not_show_what_its_job_was_given(tmp_path: Path) -> None:
    """`nodesweep report` knows only the recorded config, in which the values are hidden."""
    value = "value-that-only-the-script-of-test-inputs-has"
    job = tmp_path / JOB
    job.mkdir()
    (job / "job.sh").write_text(f"#!/bin/bash\nexport DB_PASSWORD='{value}'\n")
    (job / "node-0.log").write_text(f"connecting with {value}\n")
    [line] = bind(slurm_platform(tmp_path)).read_log(completed(), tmp_path / "logs")
    assert line.text == "connecting with (hidden)"
    [saved] = bind(slurm_platform(tmp_path)).save_log(JOB, tmp_path / "logs")
    assert value not in saved.read_text()
