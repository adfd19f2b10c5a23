"""Progress of a long step, as events for the views of a run."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep import events as event_module
from nodesweep.configs.dataset import DatasetConfig
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.events import PROGRESS, Event, Meter, emit, read_event
from nodesweep.launch.follow import LogFollower
from nodesweep.launch.sagemaker.cloudwatch import CloudWatchLog
from nodesweep.tasks.dataset.files import scan_directory, upload
from nodesweep.tasks.image.output import BuildOutput


@pytest.fixture
def told() -> Iterator[list[Event]]:
    """Record the events for a view."""
    events: list[Event] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            events.append(read_event(record))

    logger, listener = logging.getLogger(PROGRESS), Listener()
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    yield events
    logger.removeHandler(listener)
    logger.setLevel(logging.NOTSET)


def test_bytes_are_told_twice_a_second_with_the_time_left(
    told: list[Event], snapshot: SnapshotAssertion
) -> None:
    now = 0.0
    meter = Meter("upload", 4_000_000, "bytes", "dataset", lambda: now)
    for _ in range(40):
        now += 0.1
        meter.add(100_000)
    assert len(told) == 9, "the first, every half second, and the last"
    assert [told[0].text, told[-1].text] == snapshot
    assert told[-1].facts == {
        "what": "upload", "done": 4_000_000, "of": 4_000_000, "unit": "bytes",
    }  # fmt: skip
    meter.add(5)
    assert told[-1].facts["done"] == 4_000_000, "a part that is sent again is not more"


def test_an_upload_tells_its_bytes_sent_or_there_already(
    told: list[Event],
    aws: Callable[[str], Any],
    benchmark_config: BenchmarkConfig,
    tmp_path: Path,
) -> None:
    s3, platform = aws("s3"), benchmark_config.platform
    s3.create_bucket(Bucket=platform.bucket)
    for name in "ab":
        (tmp_path / f"{name}.bin").write_bytes(name.encode() * 50)
    config = DatasetConfig.model_validate({"name": "d", "source": str(tmp_path), "format": "files"})
    dataset = scan_directory(config)
    upload(s3, dataset, config.name, platform.bucket, platform.prefix)
    assert (told[-1].facts["done"], told[-1].stage) == (100, "dataset")
    s3.delete_object(
        Bucket=platform.bucket,
        Key=next(
            item["Key"]
            for item in s3.list_objects_v2(Bucket=platform.bucket)["Contents"]
            if item["Key"].endswith("manifest.json")
        ),
    )
    told.clear()
    assert upload(s3, dataset, config.name, platform.bucket, platform.prefix).sent_bytes == 0
    assert told[-1].facts["done"] == 100


def test_progress_of_threads_ends_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    meter = Meter("upload", 100, "bytes", "dataset", itertools.count().__next__)
    other = threading.Thread(target=meter.add, args=(50,))

    def record(*_: Any, **facts: Any) -> None:
        if facts["done"] == 50:
            other.start()
            other.join(0.3)  # as long as it could overtake
        done.append(facts["done"])

    monkeypatch.setattr(event_module, "emit", record)
    meter.add(50)
    other.join()
    assert done == [50, 100]


@pytest.mark.parametrize(
    ("line", "done"),
    [
        ("#7 [3/5] RUN pip install torch", 3),
        ("#12 [runtime 4/5] COPY . .", 4),
        ("Step 2/5 : RUN pip install torch", 2),
        ("STEP 5/5: CMD train", 5),
        ("downloaded 3/5 of the wheels", None),
        ("#7 1.2 Collecting [3/5]", None),
    ],
)
def test_a_build_tells_the_instruction_it_is_at(
    told: list[Event], line: str, done: int | None
) -> None:
    BuildOutput(logging.getLogger("nodesweep.image")).add(["something", line])
    assert [event.facts["done"] for event in told] == ([] if done is None else [done])


def test_a_build_of_the_local_platform_tells_its_phases_and_downloads(told: list[Event]) -> None:
    """Lines as the platform's process engine wrote them, in looks of the log."""
    output = BuildOutput(logging.getLogger("nodesweep.image"))
    looks = {
        "make virtual environment": [
            "[READ Dockerfile] FROM x: 3 files",
            "[MAKE virtual environment]",
        ],
        "downloading torch 2.13.0+cpu (191.8 MB)": [
            "[DOWNLOAD torch without CUDA]",
            "Collecting torch==2.13.0+cpu",
            "  Downloading http://index/torch-2.13.0%2Bcpu-cp311-none-any.whl (191.8 MB)",
            "  Downloading http://index/torch-2.13.0%2Bcpu-cp311-none-any.whl.metadata (3 kB)",
        ],
        "install torch": ["[INSTALL torch]", "Processing /images/torch.whl"],
        "downloading numpy (16.0 MiB)": [
            "[INSTALL requirements with uv]",
            "Downloading numpy (16.0MiB)",
            " Downloaded numpy",
        ],
        "copy 12 files": ["[COPY] 12 files"],
    }
    for lines in looks.values():
        output.add(lines)
        output.add(["[INFO] of a program", "Installing collected packages"])
    assert [event.text for event in told] == list(looks)
    assert {event.stage for event in told} == {"image"}
    assert all(event.facts == {"what": "image build"} for event in told)


def test_a_download_in_a_containers_build_is_told_with_its_instruction(told: list[Event]) -> None:
    output = BuildOutput(logging.getLogger("nodesweep.image"))
    output.add(["#7 [3/5] RUN pip install torch"])
    output.add(["#7 2.345   Downloading torch-2.13.0-cp311-none-any.whl (191.8 MB)"])
    words = "instruction 3 of 5: downloading torch 2.13.0 (191.8 MB)"
    assert (told[-1].text, told[-1].facts["done"], told[-1].facts["of"]) == (words, 3, 5)


def test_every_line_of_a_node_is_told_and_a_few_go_to_prefect(
    told: list[Event], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import UTC, datetime

    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.INFO, "nodesweep.log")
    words = [
        "2026-11-23 05:23:29,071 sagemaker-training-toolkit INFO     Imported framework x",
        *(f"step={number}; loss=1;" for number in range(30)),
    ]
    events = [
        {
            "timestamp": 1,
            "eventId": str(at),
            "logStreamName": "s-n2-r1-a1-ab12/algo-1-1",
            "message": text,
        }
        for at, text in enumerate(words)
    ]

    class Logs:
        def filter_log_events(self, **query: Any) -> dict[str, Any]:
            return {"events": events}

    follower = LogFollower(partial(CloudWatchLog, Logs()))
    job = "s-n2-r1-a1-ab12"
    follower.begin([job], datetime.fromtimestamp(0, UTC))
    follower.poll(job)
    assert [event.facts["kind"] for event in told] == ["toolkit"] + ["program"] * 30
    assert told[-1].facts["step"] == (29, None) and told[-1].facts["host"] == "algo-1"
    kept = [record for record in caplog.records if record.name == "nodesweep.log"]
    assert len(kept) == 11, "ten lines, and how many were left out"


def test_nothing_is_told_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("nodesweep").setLevel(logging.INFO)
    with caplog.at_level(logging.INFO):
        emit("progress", "words", source="image", what="x")
    assert caplog.records == []
