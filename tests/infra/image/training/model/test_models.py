"""From the CIFAR-10 archive to a trained model: the ResNet-18 example on a small archive, and its
memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.load import load_config
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.plan import plan_sweep
from tests.configs.data.cifar10_archive import small_batches, write_archive
from tests.infra.image.conftest import IMAGE
from tests.infra.image.training.processes import Trainings, succeed, two_nodes
from tests.nodesweep.launch.sagemaker.rendered import build_request
from tests.processes.warm_process import WarmProcess

REPOSITORY = IMAGE.parents[1]
EXAMPLE = REPOSITORY / "configs" / "examples" / "resnet18_cifar10_g4dn_spot.yaml"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 images, which the example's own command has turned into its dataset."""
    folder = tmp_path_factory.mktemp("cifar10")
    archive = write_archive(folder / "cifar-10-binary.tar.gz", small_batches(rows=80)[1])
    command = [
        sys.executable,
        "-m",
        "nodesweep.configs.data.make_cifar10",
        str(archive),
        str(folder / "table"),
    ]
    subprocess.run(command, check=True, timeout=300, cwd=REPOSITORY)
    return folder / "table"


@pytest.fixture
def on_images(
    image_python: str, cifar10: Path, tmp_path: Path, warm: WarmProcess
) -> Iterator[Trainings]:
    running = Trainings(image_python, cifar10, tmp_path, warm)
    yield running
    running.end()


def example_arguments(nodes: int) -> list[str]:
    """Return the hyperparameters of the example's request that the toolkit passes on, without its
    own."""
    config = load_config(EXAMPLE)
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    point = next(point for point in plan.points if point.nodes == nodes)
    inputs = ResolvedInputs("resnet18-20261122000000-0123abcd", "image", "s3://bucket/data")
    sent = build_request(config, point, inputs)["HyperParameters"]
    own = {
        name: json.loads(value) for name, value in sent.items() if not name.startswith("sagemaker_")
    }
    return [text for name, value in own.items() for text in (f"--{name}", str(value))]


def check(metrics: dict[str, Any], nodes: int) -> None:
    # three channels, ten classes
    assert metrics["model"] == {"name": "resnet18", "parameters": 11_173_962}
    assert metrics["batch"]["per_replica_batch_size"] == 128
    assert metrics["batch"]["global_batch_size"] == 128 * nodes
    assert metrics["learning_rate"] == pytest.approx(0.1 * nodes)
    assert (metrics["world"]["world_size"], metrics["dataset_rows"], metrics["steps"]) == (
        nodes,
        320,
        1,
    )
    assert 0 <= metrics["final_metric"]["value"] <= 1


def test_the_example_trains_on_what_the_archive_gives(on_images: Trainings) -> None:
    """One step each on one rank and on two, with the example's batch per replica."""
    succeed(on_images.fork(*example_arguments(1), "--max-steps", "1"))
    check(on_images.metrics(), nodes=1)
    succeed(*two_nodes(on_images, *example_arguments(2), "--max-steps", "1"))
    check(on_images.metrics("127.0.9.1"), nodes=2)


MEMORY = """
import json, sys, tracemalloc
from types import SimpleNamespace
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import training.data.module
from training.arguments import parse_arguments
from training.data.batching import plan_batch
source, prepared = Path(sys.argv[1]), Path(sys.argv[2])
rows = np.random.default_rng(0).integers(0, 256, (10_000, 3072), dtype=np.uint8)
pixels = pa.FixedSizeBinaryArray.from_buffers(
    pa.binary(3072), len(rows), [None, pa.py_buffer(rows)]
)
table = pa.table({"pixels": pixels, "label": rows[:, 0] % 10})
pq.write_table(table, source / "t.parquet", row_group_size=1000)
arguments = parse_arguments(["--data", str(source), "--image-channels", "3"])
training.data.module.gather_numbers = lambda numbers: [numbers]  # no process group
alone = SimpleNamespace(rank=0, world_size=1, local_rank=0)
data = training.data.module.TableData(arguments, alone, plan_batch(1, 128, 1, None), prepared)
data.prepare_data()
tracemalloc.start()
data.setup("fit")
peak_bytes = tracemalloc.get_traced_memory()[1]
tracemalloc.stop()
features, labels = batch = next(iter(data.train_dataloader()))
normal, same = data.on_after_batch_transfer(batch, 0)
picked = training.data.module.split_rows(10_000, arguments.validation_fraction, arguments.seed)[0]
mean, deviation = (float(part) for part in data._scale)
print(json.dumps({
    "table_bytes": rows.nbytes,
    "peak_bytes": peak_bytes,
    "shape": list(features.shape),
    "kind": str(features.dtype),
    "normal": str(normal.dtype),
    "normal_mean": float(normal.mean()),
    "normal_deviation": float(normal.std()),
    "mean": [mean, float(rows[picked].mean())],
    "deviation": [deviation, float(rows[picked].std())],
}))
"""


def test_images_stay_bytes_until_the_batch(image_python: str, tmp_path: Path) -> None:
    """A rank maps the node's table: setting up takes less memory than a copy of it, as bytes,
    would.
    """
    (tmp_path / "source").mkdir()
    command = [image_python, "-c", MEMORY, str(tmp_path / "source"), str(tmp_path / "prepared")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=IMAGE)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["peak_bytes"] < found["table_bytes"] / 2
    assert (found["shape"], found["kind"], found["normal"]) == (
        [128, 3, 32, 32],
        "torch.uint8",
        "torch.float32",
    )
    assert found["normal_mean"] == pytest.approx(0, abs=0.01)
    assert found["normal_deviation"] == pytest.approx(1, abs=0.01)
    for name in ("mean", "deviation"):
        assert found[name][0] == pytest.approx(found[name][1], rel=1e-6)
