"""A user's program without torch in real processes: nodesweep uses the program's own clock and
its reported world size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.local.tests.engine.conftest import own_training_slot  # noqa: F401  (a fixture)
from infra.local.tests.engine.engine_bench import TIMES, OneImage, write_image, write_train
from infra.local.tests.platform_client import client
from infra.local.tests.platform_fakes import FakeImageStore
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from sagemaker_emulator.engine.process.engine import ProcessEngine
from sagemaker_emulator.server.backends import Backend, with_real_nodes
from sagemaker_emulator.server.contract import ServerConfig
from sagemaker_emulator.server.serving import running
from tests.flows.simulated_sweep import measure

pytestmark = [pytest.mark.usefixtures("prefect", "quiet"), pytest.mark.slow]
# What the toolkit would start; no line of it is nodesweep's.
SLOW_TO_START = """
time.sleep(1.5)  # installing and importing
rank, nodes = resources["hosts"].index(host), len(resources["hosts"])
print(f"{SAID}", flush=True)
print(f"rank={rank}; train_seconds={6.138 / nodes + rank / 100};", flush=True)
"""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A served platform whose only image starts the script that `program` writes."""
    state, image = tmp_path / "state", write_image(tmp_path / "tiny")
    state.mkdir()
    engines: list[ProcessEngine] = []

    def make(config: ServerConfig, endpoint: str) -> Backend:
        engines.append(
            ProcessEngine(config.state_dir / "engine", OneImage(image), endpoint, times=TIMES)
        )
        images = FakeImageStore()
        images.resolve = OneImage(image).resolve
        return with_real_nodes(config, engines[0], images)

    with running(ServerConfig(0, state), make) as endpoint:
        yield SimpleNamespace(
            endpoint=endpoint,
            state_dir=state,
            program=lambda said: write_train(image, SLOW_TO_START.replace("{SAID}", said)),
        )
    engines[0].close()


@pytest.fixture
def config(
    platform: SimpleNamespace, pipeline_config: Callable[..., BenchmarkConfig]
) -> BenchmarkConfig:
    counts = {"node_counts": [1, 2], "order": "ascending"}
    own = {"endpoint_url": platform.endpoint, "state_directory": str(platform.state_dir)}
    return pipeline_config("own", platform=own, sweep=counts)


def test_a_program_that_is_slow_to_start_is_timed_by_its_own_line(
    platform: SimpleNamespace, config: BenchmarkConfig
) -> None:
    platform.program("world_size={nodes};")
    report = scaling_benchmark(config).report
    one, two = report.points
    assert one.clocks.train_seconds == 6.138
    assert two.clocks.train_seconds == pytest.approx(6.138 / 2 + 0.01), "the slower rank's"
    assert one.phases["Training"] > 1.5
    assert (report.train_clock, [row.world_size for row in report.summary]) == ("logged", [1, 2])
    assert report.summary[1].train.speedup == pytest.approx(6.138 / 3.079)
    assert report.recommendation is not None


def test_nodes_that_each_trained_alone_are_no_world_of_two(
    platform: SimpleNamespace, config: BenchmarkConfig
) -> None:
    platform.program("1 processes")
    report = scaling_benchmark(config).report
    assert [row.world_size for row in report.summary] == [1, None]
    assert report.summary[1].flags[0] == "world_size_unconfirmed"


def test_nodes_that_say_that_they_trained_alone_fail_the_point(
    platform: SimpleNamespace, config: BenchmarkConfig
) -> None:
    platform.program("world_size=1;")
    report = measure(config).report
    assert [point.status for point in report.points] == ["Completed", "Failed"]
    reason = report.points[1].reason or ""
    assert all(words in reason for words in ("2 processes", "2 nodes", "with 1 (by"))
    assert report.summary[1].world_size == 1
    assert report.summary[1].train.speedup is None


def test_the_platforms_final_metrics_are_the_programs_word(
    platform: SimpleNamespace, config: BenchmarkConfig
) -> None:
    """Any wording, by a metric definition."""
    platform.program("It took 4.5 s")
    defined = {"train_seconds": r"It took (\S+) s"}
    training = config.training.model_copy(update={"metric_definitions": defined})
    report = scaling_benchmark(config.model_copy(update={"training": training})).report
    assert [point.clocks.train_seconds for point in report.points] == [4.5, 4.5]
    [metric] = client(platform.endpoint, "sagemaker").describe_training_job(
        TrainingJobName=report.points[0].job_name
    )["FinalMetricDataList"]
    assert (metric["MetricName"], metric["Value"]) == ("train_seconds", 4.5)


def test_a_metric_that_is_never_printed_is_named_in_the_report_with_the_line_most_like_it(
    platform: SimpleNamespace, config: BenchmarkConfig
) -> None:
    """The program prints its accuracy otherwise than the config looks for it; its time is found."""
    platform.program("world_size={nodes}; accuracy: 0.91")
    defined = {"final_metric": r"accuracy=(\S+)"}
    training = config.training.model_copy(update={"metric_definitions": defined})
    report = scaling_benchmark(config.model_copy(update={"training": training})).report
    assert [point.clocks.train_seconds for point in report.points] == [6.138, pytest.approx(3.079)]
    [said] = [caveat for caveat in report.caveats if "was never printed" in caveat]
    assert "final_metric" in said and "1 node, repeat 1" in said and "2 nodes, repeat 1" in said
    assert "“algo-1: world_size=1; accuracy: 0.91”" in said
