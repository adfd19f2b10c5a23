"""The CreateTrainingJob request of a point."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.rules.offline import check
from tests.nodesweep.launch.sagemaker.rendered import build_request, request_digest
from tests.nodesweep.scaling.rules.facts import facts_of

INPUTS = ResolvedInputs(
    sweep_id="bench-20260102030405-0a1b2c3d",
    image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/nodesweep@sha256:" + "a" * 64,
    dataset_uri="s3://bench-bucket/nodesweep/datasets/digits/0123456789abcdef/data/",
)

RECORDED = Path(__file__).parents[1] / "golden_requests"
SMP_V1 = {
    "kind": "smp_v1",
    "partitions": 2,
    "microbatches": 4,
    "placement_strategy": "spread",
    "pipeline": "interleaved",
    "optimize": "speed",
    "ddp": True,
    "processes_per_node": 8,
}
SMP_V2 = {
    "kind": "smp_v2",
    "hybrid_shard_degree": 8,
    "tensor_parallel_degree": 2,
    "sm_activation_offloading": True,
}
# Recording of record_sdk_requests.py -> the same choice here.
SMP_V1_KEYS = {
    "partitions": 2,
    "ddp": True,
    "sharded_data_parallel_degree": 2,
    "ddp_dist_backend": "nccl",
    "ddp_port": 7778,
    "contiguous": False,
    "load_partition": True,
    "partition_file": "/opt/ml/input/data/split/partition.pkl",
    "sdp_reduce_bucket_size": 500_000_000,
    "sdp_param_persistence_threshold": 1_000_000,
    "sdp_max_live_parameters": 1_000_000_000,
    "sdp_hierarchical_allgather": True,
    "sdp_gradient_clipping": 1.0,
}
SAME_CHOICE = {
    "none": {"kind": "none"},
    "torch_distributed": {"kind": "torch_distributed"},
    "torch_distributed_cpu": {"kind": "torch_distributed"},
    "torch_distributed_smddp": {"kind": "torch_distributed", "smddp": True},
    "pytorchddp": {"kind": "pytorchddp"},
    "pytorchddp_options": {"kind": "pytorchddp", "custom_mpi_options": "-verbose"},
    "smddp": {"kind": "smddp"},
    "smddp_options": {"kind": "smddp", "custom_mpi_options": "-x NCCL_DEBUG=VERSION"},
    "smp_v1": SMP_V1,
    # the recording spells out the EFA settings that are given by default here
    "smp_v1_efa": SMP_V1,
    "smp_v1_keys": {"kind": "smp_v1", "processes_per_node": 8, "efa_flags": False, **SMP_V1_KEYS},
    "smp_v1_horovod": {"kind": "smp_v1", "processes_per_node": 8, "partitions": 2, "horovod": True},
    "smp_v2": SMP_V2,
    "smp_v2_image": SMP_V2,  # the SDK chose the image by itself; here it is named
    "mpi": {"kind": "mpi"},
    "mpi_options": {
        "kind": "mpi",
        "processes_per_node": 2,
        "custom_mpi_options": "--NCCL_DEBUG WARN",
    },
    "horovod": {"kind": "horovod", "processes_per_node": 8},
    "parameter_server": {"kind": "parameter_server"},
    "trainium": {"kind": "trainium"},
}
# What the SDK refuses or takes, and the sentence with which the plan refuses it.
REFUSED_HERE = {
    # an image is always named here, with which the SDK takes CPU nodes too
    "refused_cpu_without_image": None,
    "refused_pytorchddp_by_version": None,  # an AWS container without SMDDP gets a hint here
    "refused_smddp_by_version": None,  # AWS's table of containers has 2.3.0, the SDK's ends before
    # refused by the config, tests/nodesweep/scaling/rules/distribution/test_options.py
    "refused_horovod_beside_ddp": None,
    "refused_port_without_ddp": None,
    "refused_two_smdistributed": None,  # kinds exclude each other
    "refused_mpi_on_trainium": ({"kind": "mpi"}, "mpi does not start on ml.trn1.32xlarge"),
    "refused_smddp_on_p5": ({"kind": "smddp"}, "ml.p5.48xlarge does not support smddp"),
    "taken_smddp_on_g5": ({"kind": "smddp"}, "ml.g5.12xlarge does not support smddp"),
    "taken_64_processes_on_8_gpus": (
        {"kind": "mpi", "processes_per_node": 64},
        "64 is more than the 8 accelerators",
    ),
}


def recording(name):
    return json.loads((RECORDED / f"{name}.json").read_text())


def config_like(name, distribution, make_config):
    """Return the config that corresponds to the arguments of the recorded estimator
    (tests/nodesweep/scaling/record_sdk_requests.py)."""
    return make_config(
        training={
            "distribution": distribution,
            "instance_type": recording(name)["asked"]["instance_type"],
            "source_dir": "code",
            "hyperparameters": {"epochs": 3, "model": "mlp", "learning-rate": 0.1},
        },
        sweep={"node_counts": [2]},
    )


def plan_of(config):
    return plan_sweep(config, load_catalogue().get(config.training.instance_type))


def test_golden_request(benchmark_config):
    request = build_request(benchmark_config, plan_of(benchmark_config).points[0], INPUTS)
    nodes = request["ResourceConfig"]["InstanceCount"]
    assert request["TrainingJobName"].startswith(f"bench-20260102030405-0a1b2c3d-n{nodes}-r1-a1-")
    digest = request_digest(request)
    assert request == {
        "TrainingJobName": f"bench-20260102030405-0a1b2c3d-n{nodes}-r1-a1-{digest[:4]}",
        "AlgorithmSpecification": {
            "TrainingImage": INPUTS.image_uri,
            "TrainingInputMode": "File",
            "EnableSageMakerMetricsTimeSeries": True,
        },
        "RoleArn": "arn:aws:iam::123456789012:role/training",
        "InputDataConfig": [
            {
                "ChannelName": "training",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": INPUTS.dataset_uri,
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
                "InputMode": "File",
            }
        ],
        "OutputDataConfig": {
            "S3OutputPath": "s3://bench-bucket/nodesweep/sweeps/bench-20260102030405-0a1b2c3d/jobs"
        },
        "ResourceConfig": {
            "InstanceType": "ml.m5.xlarge",
            "InstanceCount": nodes,
            "VolumeSizeInGB": 30,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "HyperParameters": {
            "epochs": "3",
            "batch-size": str(64 // nodes),
            "lr": "0.1",
            "sagemaker_program": '"train.py"',
            "sagemaker_container_log_level": "20",
            "sagemaker_region": '"us-east-1"',
            "sagemaker_job_name": json.dumps(request["TrainingJobName"]),
        },
        "ProfilerConfig": {"DisableProfiler": True},
        "Tags": [
            {"Key": "nodesweep:sweep-id", "Value": INPUTS.sweep_id},
            {"Key": "nodesweep:request-digest", "Value": digest},
            {"Key": "nodesweep:nodes", "Value": str(nodes)},
            {"Key": "nodesweep:repeat", "Value": "1"},
            {"Key": "nodesweep:attempt", "Value": "1"},
        ],
    }


def test_request_digest_is_the_same_for_another_attempt(benchmark_config):
    point = plan_of(benchmark_config).points[0]
    first, second = (build_request(benchmark_config, point, INPUTS, attempt) for attempt in (1, 2))
    assert request_digest(first) == request_digest(second)
    assert first["TrainingJobName"] != second["TrainingJobName"]


def test_torch_distributed_and_own_code_reach_the_toolkit(make_config):
    config = make_config(
        training={"distribution": {"kind": "torch_distributed", "processes_per_node": 2}}
    )
    inputs = ResolvedInputs(
        INPUTS.sweep_id, INPUTS.image_uri, INPUTS.dataset_uri, "s3://b/code/sourcedir.tar.gz"
    )
    sent = build_request(config, plan_of(config).points[0], inputs)["HyperParameters"]
    assert sent["sagemaker_torch_distributed_enabled"] == "true"
    assert sent["sagemaker_mpi_num_of_processes_per_host"] == "2"
    assert sent["sagemaker_submit_directory"] == '"s3://b/code/sourcedir.tar.gz"'


def test_a_hyperparameter_too_long_for_the_service_is_refused(make_config, snapshot):
    config = make_config(
        training={"hyperparameters": {"b": "{global_batch_size}", "long": "x" * 2499}}
    )
    with pytest.raises(ValueError) as refused:
        build_request(config, plan_of(config).points[0], INPUTS)
    assert str(refused.value) == snapshot


def test_every_recording_is_compared():
    assert {path.stem for path in RECORDED.iterdir()} == set(SAME_CHOICE) | set(REFUSED_HERE)


@pytest.mark.parametrize("name", SAME_CHOICE)
def test_the_request_is_what_the_sdk_sends_for_the_same_choice(name, make_config):
    recorded = recording(name)["request"]
    inputs = ResolvedInputs(
        sweep_id=INPUTS.sweep_id,
        image_uri=recorded["AlgorithmSpecification"]["TrainingImage"],
        dataset_uri="s3://bench-bucket/data/",
        source_uri=json.loads(recorded["HyperParameters"]["sagemaker_submit_directory"]),
    )
    config = config_like(name, SAME_CHOICE[name], make_config)
    sent = build_request(config, plan_of(config).points[0], inputs)
    # Different on purpose:
    # a job's name is made of its content
    assert sent.pop("TrainingJobName") != recorded.pop("TrainingJobName")
    assert json.loads(sent["HyperParameters"].pop("sagemaker_job_name")).startswith(INPUTS.sweep_id)
    assert recorded["HyperParameters"].pop("sagemaker_job_name") == '"golden"'
    assert sent.pop("Tags")  # the SDK sends none; a sweep is found again by its tags
    # The profiler and the debugger's hook sample every node while it trains: a benchmark measures
    # without them.
    assert sent.pop("ProfilerConfig") == {"DisableProfiler": True}
    assert recorded.pop("ProfilerConfig")["DisableProfiler"] is (name == "trainium")
    assert recorded.pop("DebugHookConfig")["CollectionConfigurations"] == []
    # The image's own SAGEMAKER_PROGRAM would win over the hyperparameter where code is sent.
    assert sent.pop("Environment") == {"SAGEMAKER_PROGRAM": "train.py"}
    # Metrics as time series: the SDK asks for them only with an image of its own choice, here
    # always.
    assert sent["AlgorithmSpecification"].pop("EnableSageMakerMetricsTimeSeries") is True
    chosen_by_sdk = recorded["AlgorithmSpecification"].pop(
        "EnableSageMakerMetricsTimeSeries", False
    )
    assert chosen_by_sdk is (name == "smp_v2_image")
    # Every sweep has its prefix.
    assert sent.pop("OutputDataConfig")["S3OutputPath"].startswith(
        "s3://bench-bucket/nodesweep/sweeps/"
    )
    assert recorded.pop("OutputDataConfig") == {"S3OutputPath": "s3://bench-bucket/nodesweep/jobs"}
    assert sent == recorded


@pytest.mark.parametrize("name", [name for name, case in REFUSED_HERE.items() if case])
def test_the_plan_refuses_more_than_the_sdk(name, make_config):
    distribution, message = REFUSED_HERE[name]
    assert ("refused" in recording(name)) is name.startswith("refused_")
    assert any(
        message in problem
        for problem in check(facts_of(config_like(name, distribution, make_config))).problems
    )


def test_a_job_without_channels_has_no_input(make_config):
    request = build_request(make_config(dataset=None), plan_of(make_config()).points[0], INPUTS)
    assert "InputDataConfig" not in request
    assert request["AlgorithmSpecification"]["TrainingInputMode"] == "File"


def test_a_channel_per_folder(make_config):
    dataset = {"format": "files", "expectations": [], "channel": None}
    inputs = replace(INPUTS, dataset_folders=("train", "val"))
    channels = build_request(
        make_config(dataset=dataset), plan_of(make_config()).points[0], inputs
    )["InputDataConfig"]
    uri = INPUTS.dataset_uri
    assert {c["ChannelName"]: c["DataSource"]["S3DataSource"]["S3Uri"] for c in channels} == {
        "train": f"{uri}train/",
        "val": f"{uri}val/",
    }


@pytest.mark.parametrize(
    ("measure", "sent"), [("auto", None), ("helper", "helper"), ("off", "off")]
)
def test_training_measure_reaches_the_job_unless_it_is_auto(make_config, measure, sent):
    config = make_config(training={"measure": measure})
    request = build_request(config, plan_of(config).points[0], INPUTS)
    assert request.get("Environment", {}).get("NODESWEEP_MEASURE") == sent
