"""Refusals of a distributed job before anything is sent."""

from __future__ import annotations

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.rules import offline
from nodesweep.scaling.rules.distribution.efa import TOOLKIT_EFA_TYPES, efa_settings, mpi_options
from nodesweep.scaling.rules.plan import COMMON_HYPERPARAMETERS
from tests.nodesweep.launch.sagemaker.rendered import build_request
from tests.nodesweep.scaling.rules.facts import facts_of

DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
SMP_V1 = {"kind": "smp_v1", "partitions": 2, "ddp": True}
SMP_V2 = {"kind": "smp_v2", "hybrid_shard_degree": 8}
RDMA = "FI_EFA_USE_DEVICE_RDMA"


def instance_of(name):
    return load_catalogue().get(name)


# -- EFA -------------------------------------------------------------------------------------------


def test_efa_settings_follow_the_adapter():
    assert efa_settings(instance_of("ml.p3.16xlarge")) == {}
    assert efa_settings(instance_of("ml.p3dn.24xlarge")) == {
        "FI_PROVIDER": "efa",
        "RDMAV_FORK_SAFE": "1",
    }
    assert efa_settings(instance_of("ml.p4d.24xlarge"))[RDMA] == "1"


def test_mpi_options_keep_what_the_user_says():
    p4d = instance_of("ml.p4d.24xlarge")
    assert mpi_options("", True, p4d) == f"-x FI_PROVIDER=efa -x {RDMA}=1 -x RDMAV_FORK_SAFE=1"
    assert (
        mpi_options("-x FI_PROVIDER=tcp", True, p4d)
        == f"-x FI_PROVIDER=tcp -x {RDMA}=1 -x RDMAV_FORK_SAFE=1"
    )
    assert mpi_options("-verbose", False, p4d) == "-verbose"
    assert mpi_options("-verbose", True, instance_of("ml.p3.16xlarge")) == "-verbose"


@pytest.mark.parametrize(
    ("raw", "instance_type", "said"),
    [
        ({"kind": "torch_distributed"}, "ml.p5en.48xlarge", True),
        ({"kind": "torch_distributed"}, "ml.p4d.24xlarge", False),
        ({"kind": "torch_distributed"}, "ml.p3.16xlarge", False),
        ({"kind": "mpi", "efa_flags": False}, "ml.p5en.48xlarge", True),
        (
            {"kind": "mpi", "efa_flags": False, "custom_mpi_options": "-x FI_PROVIDER=efa"},
            "ml.p5en.48xlarge",
            False,
        ),
        ({"kind": "mpi"}, "ml.p5en.48xlarge", False),
        ({"kind": "none"}, "ml.p4d.24xlarge", True),
        ({"kind": "parameter_server"}, "ml.p4d.24xlarge", True),
        ({"kind": "torch_distributed"}, "ml.c5n.18xlarge", False),  # gloo has no libfabric
    ],
)
def test_an_adapter_that_nothing_turns_on_is_a_hint(raw, instance_type, said, check, snapshot):
    hints = [hint for hint in check(raw, instance_type)[1] if "Elastic" in hint]
    environment = f'FI_PROVIDER: "efa", {RDMA}: "1", RDMAV_FORK_SAFE: "1"'
    advice = f"kind {raw['kind']} does not enable it; add {{{environment}}}"
    assert [hint.endswith(advice) for hint in hints] == [True] * said
    told = check(raw, instance_type, environment={"FI_PROVIDER": "efa"})[1]
    assert told == snapshot


def test_the_toolkits_list_of_adapters_is_in_the_catalogue():
    known = {row.instance_type for row in load_catalogue().instances if row.efa}
    assert known >= TOOLKIT_EFA_TYPES


@pytest.mark.parametrize(
    ("raw", "environment", "said"),
    [
        ({"kind": "mpi", "custom_mpi_options": "-x FI_PROVIDER=efa"}, {}, True),
        ({"kind": "none"}, {"FI_PROVIDER": "efa", RDMA: "1"}, True),
        ({"kind": "pytorchddp"}, {}, True),
        ({"kind": "mpi"}, {}, False),  # efa_flags gives nothing where there is no adapter
        ({"kind": "torch_distributed"}, {"FI_PROVIDER": "tcp"}, False),
    ],
)
def test_flags_of_an_adapter_that_is_not_there_are_a_hint(raw, environment, said, check, snapshot):
    problems, hints = check(raw, "ml.g4dn.xlarge", environment=environment)
    found = [hint for hint in hints if "NCCL warns" in hint]
    assert problems == []
    assert bool(found) is said
    assert found == snapshot
    on_adapter = check(raw, "ml.g5.48xlarge", environment={})[1]
    assert not [hint for hint in on_adapter if "NCCL warns" in hint]


def test_rdma_is_neither_refused_nor_demanded_where_nobody_knows_of_it(check, snapshot):
    # p6-b200's adapter came after libfabric's list of those without RDMA; the type was refused as
    # if it had none.
    assert check({"kind": "none"}, "ml.p6-b200.48xlarge", environment={RDMA: "1"})[0] == []
    assert RDMA not in efa_settings(instance_of("ml.p6-b200.48xlarge"))
    (problem,) = check({"kind": "none"}, "ml.c5n.18xlarge", environment={RDMA: "1"})[0]
    assert problem == snapshot


# -- unknown facts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        {"kind": "trainium"},
        {"kind": "torch_distributed"},
    ],
)
def test_a_launcher_is_refused_where_nobody_knows_how_many_ranks_it_starts(raw, check, snapshot):
    (problem,) = check(raw, "ml.trn2.48xlarge")[0]
    assert problem == snapshot


def test_a_kind_without_the_field_is_told_which_has_it(check, snapshot):
    assert check({"kind": "pytorchddp"}, "ml.p6e-gb200.36xlarge")[0] == snapshot


def test_ranks_that_were_given_are_taken_and_said_to_be_unchecked(check, snapshot):
    problems, hints = check({"kind": "trainium", "processes_per_node": 64}, "ml.trn2.48xlarge")
    assert problems == []
    assert [hint for hint in hints if "is unknown" in hint] == snapshot
    assert check({"kind": "none"}, "ml.trn2.48xlarge")[0] == [], "plain processes are one per node"


def test_an_adapter_nobody_knows_of_is_said(check, snapshot):
    problems, hints = check({"kind": "none"}, "ml.p2.xlarge", environment={RDMA: "1"})
    assert problems == []
    assert hints == snapshot


# -- rules -----------------------------------------------------------------------------------------

GOOD = [
    ({"kind": "none"}, "ml.p4d.24xlarge"),
    ({"kind": "torch_distributed", "processes_per_node": 4}, "ml.m5.xlarge"),
    ({"kind": "torch_distributed", "processes_per_node": 8}, "ml.p3.16xlarge"),
    ({"kind": "torch_distributed"}, "ml.trn1.32xlarge"),
    ({"kind": "pytorchddp", "custom_mpi_options": "-x NCCL_DEBUG=VERSION"}, "ml.g5.12xlarge"),
    ({"kind": "smddp"}, "ml.p4de.24xlarge"),
    ({"kind": "smddp"}, "ml.local.small"),
    ({**SMP_V1, "microbatches": 4}, "ml.p3.16xlarge"),
    (SMP_V2, "ml.p5.48xlarge"),
    (
        {
            "kind": "mpi",
            "custom_mpi_options": "--mca btl_base_verbose 30 --mca mpi_show_mca_params all",
        },
        "ml.p4d.24xlarge",
    ),
    ({"kind": "parameter_server"}, "ml.m5.xlarge"),
    ({"kind": "trainium"}, "ml.trn1.2xlarge"),
    ({"kind": "trainium"}, "ml.local.small"),
    ({"kind": "horovod"}, "ml.p3.16xlarge"),
]


@pytest.mark.parametrize(
    ("raw", "instance_type"),
    GOOD,
    ids=lambda value: value["kind"] if isinstance(value, dict) else value,
)
def test_a_supported_choice_has_no_problem(raw, instance_type, check):
    assert check(raw, instance_type)[0] == []


MPI_KINDS = ["mpi", "horovod", "pytorchddp", "smddp", "smp_v1"]


@pytest.mark.parametrize(
    ("raw", "instance_type"),
    [
        ({"kind": "smddp"}, "ml.g5.12xlarge"),
        ({"kind": "smddp"}, "ml.p5.48xlarge"),
        ({"kind": "torch_distributed", "smddp": True}, "ml.p3.16xlarge"),
        (SMP_V1, "ml.m5.xlarge"),
        (SMP_V2, "ml.p3.16xlarge"),
        ({"kind": "trainium"}, "ml.p4d.24xlarge"),
        ({"kind": "mpi"}, "ml.trn1.32xlarge"),
        ({"kind": "parameter_server"}, "ml.trn1.2xlarge"),
        ({"kind": "mpi", "processes_per_node": 64}, "ml.p4d.24xlarge"),
        ({"kind": "torch_distributed", "processes_per_node": 33}, "ml.trn1.32xlarge"),
        ({**SMP_V1, "partitions": 3}, "ml.p3.16xlarge"),
        ({**SMP_V1, "partitions": 4, "tensor_parallel_degree": 4}, "ml.p3.16xlarge"),
        ({**SMP_V1, "sharded_data_parallel_degree": 3}, "ml.p3.16xlarge"),
        ({"kind": "smp_v1", "partitions": 2}, "ml.p3.16xlarge"),
        ({**SMP_V1, "microbatches": 3}, "ml.p3.16xlarge"),
        ({**SMP_V2, "tensor_parallel_degree": 3}, "ml.p4d.24xlarge"),
        ({**SMP_V2, "hybrid_shard_degree": 4, "context_parallel_degree": 8}, "ml.p4d.24xlarge"),
        ({**SMP_V2, "expert_parallel_degree": 5}, "ml.p4d.24xlarge"),
        ({"kind": "mpi", "custom_mpi_options": f"-x {RDMA}=1"}, "ml.p3dn.24xlarge"),
        (
            {"kind": "smddp", "custom_mpi_options": "--mca plm_rsh_num_concurrent 2"},
            "ml.p4d.24xlarge",
        ),
        *(
            (
                {
                    **({"kind": kind} if kind != "smp_v1" else SMP_V1),
                    "custom_mpi_options": "--mca btl_vader_single_copy_mechanism none",
                },
                "ml.p4d.24xlarge",
            )
            for kind in MPI_KINDS
        ),
        ({"kind": "mpi", "custom_mpi_options": "-mca a 1 --mca a 2"}, "ml.p4d.24xlarge"),
        ({"kind": "mpi", "custom_mpi_options": "-x A='b c'"}, "ml.p4d.24xlarge"),
    ],
)
def test_an_unsupported_choice_is_refused(raw, instance_type, check, snapshot):
    problems = check(raw, instance_type)[0]
    assert problems and all("; " in problem for problem in problems), "a problem says what to do"
    assert problems == snapshot


@pytest.mark.parametrize(
    ("raw", "training"),
    [
        ({"kind": "torch_distributed"}, {"entry_point": "run.sh"}),
        ({"kind": "smddp"}, {"hyperparameters": {"mp_parameters": "{}"}}),
        ({"kind": "none"}, {"environment": {RDMA: "1"}}),
    ],
)
def test_the_rest_of_the_job_must_fit(raw, training, check, snapshot):
    problems = check(raw, "ml.p4d.24xlarge", **training)[0]
    assert problems == snapshot


def test_model_parallelism_is_configured_by_its_fields_alone(check, snapshot):
    raw = {"kind": "smp_v2", "hybrid_shard_degree": 8}
    problems = check(raw, "ml.p4d.24xlarge", hyperparameters={"mp_parameters": "{}"})[0]
    assert problems == snapshot


def test_rdma_in_the_environment_is_refused_where_the_adapter_has_none(check, snapshot):
    (problem,) = check({"kind": "torch_distributed"}, "ml.g5.48xlarge", environment={RDMA: "1"})[0]
    assert problem == snapshot


@pytest.mark.parametrize("size", [66, 12])
def test_microbatches_look_at_the_batch_of_a_replica(size, check, snapshot):
    batch = {"policy": "fixed_per_replica", "size": size}
    problems = check({**SMP_V1, "microbatches": 4}, "ml.p3.16xlarge", nodes=[1], batch=batch)[0]
    assert problems == snapshot


def test_every_problem_is_named_at_once(make_config):
    distribution = {"kind": "smddp", "custom_mpi_options": "--mca pml ob1 -x A='b'"}
    training = {
        "distribution": distribution,
        "instance_type": "ml.g5.12xlarge",
        "hyperparameters": {
            "mp_parameters": "{}",
            "b": "{global_batch_size}",
            "lr": "{learning_rate}",
        },
        "batch": {"policy": "fixed_global", "size": 63},
    }
    image = {"uri": f"{DLC}/pytorch-training:2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker"}
    config = make_config(training=training, image=image, sweep={"node_counts": [1]})
    problems = offline.check(facts_of(config)).problems
    fields = [
        "training.hyperparameters",
        "training.instance_type",
        "training.distribution.custom_mpi_options",
        "training.distribution.custom_mpi_options",
        "image.uri",
        "training.batch.size",
    ]
    assert [problem.partition(":")[0] for problem in problems] == fields


def test_mpi_options_longer_than_a_hyperparameter_are_refused(make_config, snapshot):
    # 2,490 characters, 61 more of EFA settings with their blank, 2 quotes
    training = {
        "distribution": {"kind": "mpi", "custom_mpi_options": "x" * 2490},
        "instance_type": "ml.p4d.24xlarge",
    }
    (problem,) = offline.check(facts_of(make_config(training=training))).problems
    length = 2490 + 1 + len(f"-x FI_PROVIDER=efa -x {RDMA}=1 -x RDMAV_FORK_SAFE=1") + 2
    assert f" {length} characters" in problem
    assert problem == snapshot


def test_the_hyperparameters_of_the_launch_count(make_config, snapshot):
    # 90 of the user's + 4 common + 6 of smp_v1 = 100 fit; code of one's own adds one.
    user = {f"h{number}": 1 for number in range(88)} | {
        "b": "{global_batch_size}",
        "lr": "{learning_rate}",
    }
    training = {
        "distribution": {**SMP_V1, "processes_per_node": 8},
        "instance_type": "ml.p3.16xlarge",
        "hyperparameters": user,
    }
    assert offline.check(facts_of(make_config(training=training))).problems == ()
    (problem,) = offline.check(
        facts_of(make_config(training={**training, "source_dir": "code"}))
    ).problems
    assert problem == snapshot


def test_what_the_plan_counts_is_what_the_request_sends(make_config):
    config = make_config()
    point = plan_sweep(config, instance_of("ml.m5.xlarge")).points[0]
    inputs = ResolvedInputs(
        "bench-20260102030405-0a1b2c3d", "image", "s3://b/d/", "s3://b/sourcedir.tar.gz"
    )
    sent = build_request(config, point, inputs)["HyperParameters"]
    assert set(sent) - set(config.training.hyperparameters) == set(COMMON_HYPERPARAMETERS)
