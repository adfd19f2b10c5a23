"""Distribution options: the choice in the config, the number of processes, and the generated
table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.distribution import DistributionConfig
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.rules.distribution import (
    OPTIONS,
    option_of,
    processes_per_node,
    ranks_per_replica,
)
from nodesweep.scaling.rules.distribution.options import (
    SDK_SMDDP_VERSIONS,
    SMDDP_TYPES,
    SMDDP_VERSIONS,
)
from nodesweep.scaling.rules.distribution.table import (
    config_models,
    distribution_document,
    runs_table,
)
from nodesweep.scaling.rules.distribution.trials import (
    LAUNCH_EVIDENCE,
    PROGRAM_ON_GLOO,
    REQUEST_EVIDENCE,
    SDK,
    TOOLKIT,
    TRIALS,
)
from nodesweep.scaling.rules.offline import check
from tests.nodesweep.scaling.rules.facts import facts_of
from tests.plain import plain

REPOSITORY = Path(__file__).resolve().parents[5]
SMP_V1 = {"kind": "smp_v1", "partitions": 2, "ddp": True}
SMP_V2 = {"kind": "smp_v2", "hybrid_shard_degree": 8}


def typed(raw):
    return TypeAdapter(DistributionConfig).validate_python(raw)


def instance_of(name):
    return load_catalogue().get(name)


# -- the choice ------------------------------------------------------------------------------------


def test_every_kind_of_the_config_has_one_option():
    kinds = [
        kind
        for model in config_models().values()
        for kind in get_args(model.model_fields["kind"].annotation)
    ]
    assert sorted(kinds) == sorted(option.kind for option in OPTIONS)
    assert len(kinds) == 10


def test_every_field_of_every_kind_is_described_in_the_schema():
    schema = TypeAdapter(DistributionConfig).json_schema()
    assert schema["discriminator"]["propertyName"] == "kind"
    bare = [
        f"{name}.{field}"
        for name, model in schema["$defs"].items()
        for field, properties in model["properties"].items()
        if not properties.get("description")
    ]
    assert bare == []


@pytest.mark.parametrize(
    "raw",
    [
        {"kind": "herring"},
        {},
        {"kind": "smddp", "processes_per_node": 8},
        {"kind": "smp_v1"},
        {"kind": "smp_v2"},
        {"kind": "none", "processes_per_node": 2},
        {"kind": "mpi", "processes_per_node": 0},
        {**SMP_V1, "pipeline": "circular"},
        {**SMP_V1, "placement_strategy": "DDT"},
        {**SMP_V1, "auto_partition": False},
        {**SMP_V1, "default_partition": 2},
        {"kind": "smp_v1", "partitions": 1, "tensor_parallel_degree": 2},
        {**SMP_V1, "memory_weight": 1.5},
        {**SMP_V1, "horovod": True},
        {"kind": "smp_v1", "partitions": 2, "ddp_port": 7778},
        {"kind": "smp_v1", "partitions": 2, "ddp_dist_backend": "nccl"},
        {**SMP_V1, "ddp_port": -1},
        {**SMP_V1, "load_partition": True},
        {**SMP_V1, "sdp_gradient_clipping": 0.5},
    ],
)
def test_a_choice_that_is_none_is_refused(raw, snapshot):
    with pytest.raises(ValidationError) as refused:
        typed(raw)
    assert plain(refused.value) == snapshot


def test_parameters_left_to_the_library_are_not_sent():
    # A value of the user's own, falsy or not, is.
    config = typed(
        {**SMP_V1, "ddp": False, "default_partition": 0, "custom_mpi_options": "-verbose"}
    )
    assert config.parameters() == {"partitions": 2, "ddp": False, "default_partition": 0}
    assert typed({**SMP_V2, "hybrid_shard_degree": 0}).parameters() == {"hybrid_shard_degree": 0}


def test_the_versions_are_those_of_the_sdk_and_one_of_awss_own_table():
    recorded = json.loads(
        (REPOSITORY / "tests" / "nodesweep" / "scaling" / "sdk_tables.json").read_text()
    )

    def versions(name, framework=None):
        listed = recorded[name][framework] if framework else recorded[name]
        return {tuple(map(int, version.split("."))) for version in listed}

    smddp = versions("SM_DATAPARALLEL_SUPPORTED_FRAMEWORK_VERSIONS", "pytorch")
    assert smddp == SDK_SMDDP_VERSIONS
    assert smddp ^ SMDDP_VERSIONS == {(2, 3, 0)}
    # The SDK has no list of its own for pytorchddp any more: it becomes smddp before it is checked.
    assert recorded["PYTORCHDDP_SUPPORTED_FRAMEWORK_VERSIONS"] is None
    assert set(SMDDP_TYPES) == set(recorded["SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES"]) - {
        "local_gpu"
    }
    assert min(versions("TORCH_DISTRIBUTED_GPU_SUPPORTED_FRAMEWORK_VERSIONS")) >= (1, 13)


# -- how many --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "instance_type", "processes"),
    [
        ({"kind": "none"}, "ml.p4d.24xlarge", 1),
        ({"kind": "parameter_server"}, "ml.p4d.24xlarge", 1),
        ({"kind": "pytorchddp"}, "ml.p4d.24xlarge", 8),
        ({"kind": "smddp"}, "ml.p4d.24xlarge", 8),
        (SMP_V2, "ml.p4d.24xlarge", 8),
        ({"kind": "mpi"}, "ml.m5.xlarge", 1),
        ({"kind": "mpi", "processes_per_node": 2}, "ml.m5.xlarge", 2),
        ({"kind": "trainium"}, "ml.trn1.32xlarge", 32),
    ],
)
def test_processes_per_node(raw, instance_type, processes):
    assert processes_per_node(typed(raw), instance_of(instance_type)) == processes


@pytest.mark.parametrize(
    ("raw", "ranks"),
    [
        ({"kind": "torch_distributed"}, 1),
        (SMP_V1, 2),
        ({**SMP_V1, "tensor_parallel_degree": 4}, 2),
        ({**SMP_V1, "tensor_parallel_degree": 4, "prescaled_batch": True}, 8),
        (SMP_V2, 1),
        ({**SMP_V2, "tensor_parallel_degree": 2, "context_parallel_degree": 4}, 8),
    ],
)
def test_ranks_that_share_one_batch(raw, ranks):
    assert ranks_per_replica(typed(raw)) == ranks


def test_a_split_model_has_fewer_replicas_than_ranks(make_config):
    # 2 nodes x 8 processes / 2 partitions = 8 replicas; 64 samples / 8 = 8 each. Learning rate x
    # 64/64.
    training = {"distribution": SMP_V1, "instance_type": "ml.p3.16xlarge"}
    config = make_config(training=training, sweep={"node_counts": [2]})
    (point,) = plan_sweep(config, instance_of("ml.p3.16xlarge")).points
    assert (point.world_size, point.global_batch_size, point.per_replica_batch_size) == (16, 64, 8)
    grown = make_config(
        training={**training, "batch": {"policy": "fixed_per_replica", "size": 5}},
        sweep={"node_counts": [1, 2]},
    )
    points = {
        point.nodes: point for point in plan_sweep(grown, instance_of("ml.p3.16xlarge")).points
    }
    assert {nodes: point.global_batch_size for nodes, point in points.items()} == {1: 20, 2: 40}
    assert points[2].learning_rate == pytest.approx(0.2)


def test_an_indivisible_batch_names_the_ranks_that_share_one(make_config, snapshot):
    training = {
        "distribution": SMP_V1,
        "instance_type": "ml.p3.16xlarge",
        "batch": {"policy": "fixed_global", "size": 66},
    }
    config = make_config(training=training, sweep={"node_counts": [1]})
    (problem,) = check(facts_of(config)).problems
    assert problem == snapshot


# -- documents -------------------------------------------------------------------------------------


def test_the_document_is_made_from_the_options():
    assert (REPOSITORY / "docs" / "distribution.md").read_text() == distribution_document()


def test_what_was_run_is_told_of_every_option_with_its_evidence():
    assert TRIALS.keys() == {option.kind for option in OPTIONS}
    runs = [run for trials in TRIALS.values() for run in (*trials.gloo, *trials.full)]
    for path in (REQUEST_EVIDENCE, LAUNCH_EVIDENCE, *(run.evidence for run in runs)):
        assert (REPOSITORY / path).is_file(), path
    text = runs_table()
    for kind, trials in TRIALS.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| [`{kind}`]")]
        assert all(run.what in row for run in trials.gloo)
        assert row.count("| never ") == (not trials.gloo) + (not trials.full)
    assert all(version in text for version in PROGRAM_ON_GLOO)


def test_what_was_run_is_in_the_versions_that_are_installed():
    requirements = (REPOSITORY / "infra" / "image" / "requirements.txt").read_text()
    names = ("sagemaker-training", "sagemaker-pytorch-training", "torch")
    versions = [re.search(rf"(?m)^{name}==(\S+)", requirements)[1] for name in names]
    assert ("toolkits {} and {}, torch {}".format(*versions),) == TOOLKIT
    recorded = json.loads(
        (
            REPOSITORY / "tests" / "nodesweep" / "scaling" / "golden_requests" / "mpi.json"
        ).read_text()
    )
    assert (recorded["asked"]["sdk"].replace("sagemaker", "SDK"),) == SDK


def test_the_document_tells_every_option_whole():
    text = distribution_document()
    for option in OPTIONS:
        section = text.partition(f"\n## {option.kind}\n")[2].partition("\n## ")[0]
        model: type[BaseModel] = config_models()[option.kind]
        assert all(
            line in section for line in (*option.program_must, *option.known_wrong, option.runs_as)
        ), option.kind
        assert all(f"| `{name}`" in section for name in model.model_fields if name != "kind"), (
            option.kind
        )


def test_an_option_is_found_by_its_config():
    assert {option_of(typed({"kind": kind})).kind for kind in ("mpi", "smddp")} == {"mpi", "smddp"}
