"""Record the CreateTrainingJob requests of SageMaker SDK v2 for planning/test_request.py.

The SDK is not a dependency of nodesweep; the program runs in a separate environment without
network: it stubs every call, and opening a connection raises.

    python3.11 -m venv /tmp/sdk-v2
    /tmp/sdk-v2/bin/pip install sagemaker==2.257.7
    cd tests/nodesweep/scaling && /tmp/sdk-v2/bin/python record_sdk_requests.py golden_requests

Each case gets a file with the estimator's arguments and the request, or the SDK's error message.
sdk_tables.json, next to the folder, has the SDK's tables of supported versions and instance types.
"""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

ACCOUNT = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
OWN_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/nodesweep@sha256:" + "a" * 64
ROLE = "arn:aws:iam::123456789012:role/training"
SMP_V1 = {
    "partitions": 2,
    "microbatches": 4,
    "placement_strategy": "spread",
    "pipeline": "interleaved",
    "optimize": "speed",
    "ddp": True,
}
SMP_V1_KEYS = {
    "partitions": 2,
    "ddp": True,
    "sharded_data_parallel_degree": 2,
    "ddp_dist_backend": "nccl",
    "ddp_port": 7778,
    "contiguous": False,
    "load_partition": True,
    "partition_file": "/opt/ml/input/data/split/partition.pkl",
    "sdp_reduce_bucket_size": 500000000,
    "sdp_param_persistence_threshold": 1000000,
    "sdp_max_live_parameters": 1000000000,
    "sdp_hierarchical_allgather": True,
    "sdp_gradient_clipping": 1.0,
}
SMP_V2 = {"hybrid_shard_degree": 8, "tensor_parallel_degree": 2, "sm_activation_offloading": True}
EFA = "-x FI_PROVIDER=efa -x FI_EFA_USE_DEVICE_RDMA=1 -x RDMAV_FORK_SAFE=1"


def _smp(parameters: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        **others,
    }


def _case(
    distribution: dict[str, Any] | None, instance_type: str = "ml.p4d.24xlarge", **kwargs: Any
) -> dict[str, Any]:
    if "framework_version" not in kwargs:
        kwargs.setdefault("image_uri", OWN_IMAGE)
    return {"distribution": distribution, "instance_type": instance_type, **kwargs}


_MPI = {"enabled": True, "processes_per_host": 8}
_AFTER_SMDDP = {"framework_version": "2.3.0", "py_version": "py311"}
_TORCHRUN = {"torch_distributed": {"enabled": True}}
CASES: dict[str, dict[str, Any]] = {
    "none": _case(None, "ml.m5.xlarge"),
    "torch_distributed": _case(_TORCHRUN),
    "torch_distributed_cpu": _case(_TORCHRUN, "ml.m5.xlarge"),
    "torch_distributed_smddp": _case(
        {**_TORCHRUN, "smdistributed": {"dataparallel": {"enabled": True}}}
    ),
    "pytorchddp": _case({"pytorchddp": {"enabled": True}}),
    "pytorchddp_options": _case(
        {"pytorchddp": {"enabled": True, "custom_mpi_options": "-verbose"}}
    ),
    "smddp": _case({"smdistributed": {"dataparallel": {"enabled": True}}}),
    "smddp_options": _case(
        {
            "smdistributed": {
                "dataparallel": {"enabled": True, "custom_mpi_options": "-x NCCL_DEBUG=VERSION"}
            }
        }
    ),
    "smp_v1": _case(_smp(SMP_V1, mpi=_MPI), "ml.p3.16xlarge"),
    "smp_v1_efa": _case(_smp(SMP_V1, mpi={**_MPI, "custom_mpi_options": EFA})),
    "smp_v1_keys": _case(_smp(SMP_V1_KEYS, mpi=_MPI), "ml.p3.16xlarge"),
    "smp_v1_horovod": _case(_smp({"partitions": 2, "horovod": True}, mpi=_MPI), "ml.p3.16xlarge"),
    "smp_v2": _case(_smp(SMP_V2, **_TORCHRUN)),
    "smp_v2_image": _case(_smp(SMP_V2, **_TORCHRUN), framework_version="2.4.1", py_version="py311"),
    "mpi": _case({"mpi": {"enabled": True}}, "ml.m5.xlarge"),
    "mpi_options": _case(
        {
            "mpi": {
                "enabled": True,
                "processes_per_host": 2,
                "custom_mpi_options": "--NCCL_DEBUG WARN",
            }
        },
        "ml.m5.xlarge",
    ),
    "horovod": _case({"mpi": _MPI}, "ml.p3.16xlarge"),
    "parameter_server": _case({"parameter_server": {"enabled": True}}, "ml.m5.xlarge"),
    "trainium": _case(_TORCHRUN, "ml.trn1.32xlarge"),
    # Rejected by the SDK.
    "refused_cpu_without_image": _case(
        _TORCHRUN, "ml.m5.xlarge", framework_version="2.4.1", py_version="py311"
    ),
    "refused_mpi_on_trainium": _case({"mpi": {"enabled": True}}, "ml.trn1.32xlarge"),
    "refused_two_smdistributed": _case(
        {"smdistributed": {"dataparallel": {"enabled": True}, "modelparallel": {"enabled": True}}}
    ),
    "refused_smddp_on_p5": _case(
        {"smdistributed": {"dataparallel": {"enabled": True}}}, "ml.p5.48xlarge"
    ),
    "refused_horovod_beside_ddp": _case(
        _smp({"partitions": 2, "horovod": True, "ddp": True}, mpi=_MPI)
    ),
    "refused_port_without_ddp": _case(_smp({"partitions": 2, "ddp_port": 7778}, mpi=_MPI)),
    "refused_pytorchddp_by_version": _case({"pytorchddp": {"enabled": True}}, **_AFTER_SMDDP),
    "refused_smddp_by_version": _case(
        {"smdistributed": {"dataparallel": {"enabled": True}}}, **_AFTER_SMDDP
    ),
    # Accepted by the SDK, contrary to its documentation.
    "taken_smddp_on_g5": _case(
        {"smdistributed": {"dataparallel": {"enabled": True}}}, "ml.g5.12xlarge"
    ),
    "taken_64_processes_on_8_gpus": _case({"mpi": {"enabled": True, "processes_per_host": 64}}),
}


def record(case: dict[str, Any], source_dir: str) -> dict[str, Any]:
    """Return one case's request, or the SDK's error message."""
    from sagemaker.inputs import TrainingInput
    from sagemaker.pytorch import PyTorch

    session, requests = _session()
    try:
        estimator = PyTorch(
            entry_point="train.py",
            source_dir=source_dir,
            role=ROLE,
            instance_count=2,
            volume_size=30,
            max_run=3600,
            hyperparameters={"epochs": 3, "model": "mlp", "learning-rate": 0.1},
            output_path="s3://bench-bucket/nodesweep/jobs",
            code_location="s3://bench-bucket/nodesweep/code",
            sagemaker_session=session,
            **case,
        )
        channel = TrainingInput(
            "s3://bench-bucket/data/", distribution="FullyReplicated", input_mode="File"
        )
        estimator.fit({"training": channel}, job_name="golden", wait=False)
    except ValueError as error:
        return {"refused": str(error)}
    return {"request": requests[-1]}


def tables() -> dict[str, Any]:
    """Return the SDK's lists, by their names in sagemaker.fw_utils."""
    from sagemaker import fw_utils

    versions = fw_utils.SM_DATAPARALLEL_SUPPORTED_FRAMEWORK_VERSIONS["pytorch"]
    return {
        "SM_DATAPARALLEL_SUPPORTED_FRAMEWORK_VERSIONS": {"pytorch": versions},
        "SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES": list(
            fw_utils.SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES
        ),
        "TORCH_DISTRIBUTED_GPU_SUPPORTED_FRAMEWORK_VERSIONS": (
            fw_utils.TORCH_DISTRIBUTED_GPU_SUPPORTED_FRAMEWORK_VERSIONS
        ),
        "TRAINIUM_SUPPORTED_TORCH_DISTRIBUTED_FRAMEWORK_VERSIONS": (
            fw_utils.TRAINIUM_SUPPORTED_TORCH_DISTRIBUTED_FRAMEWORK_VERSIONS
        ),
        # Removed from later SDKs, which turn pytorchddp into smddp before the check.
        "PYTORCHDDP_SUPPORTED_FRAMEWORK_VERSIONS": getattr(
            fw_utils, "PYTORCHDDP_SUPPORTED_FRAMEWORK_VERSIONS", None
        ),
    }


def _session() -> tuple[Any, list[dict[str, Any]]]:
    """Return a SageMaker session with stubbed calls, and the CreateTrainingJob requests sent."""
    import boto3
    import botocore.session
    import sagemaker
    from botocore.awsrequest import AWSResponse

    requests: list[dict[str, Any]] = []

    def answer(request: Any, **_: Any) -> AWSResponse:
        target = request.headers.get("X-Amz-Target", b"")
        name = target.decode() if isinstance(target, bytes) else target
        if name == "SageMaker.CreateTrainingJob":
            requests.append(json.loads(request.body))
        body = (
            b'{"TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/golden"}'
            if name
            else b""
        )
        return AWSResponse(
            request.url, 200, {"Content-Type": "application/x-amz-json-1.1"}, _Raw(body)
        )

    core = botocore.session.get_session()
    core.set_credentials("recorder", "recorder")
    core.register("before-send.*", answer)
    boto = boto3.Session(botocore_session=core, region_name="us-east-1")
    silent = {
        "SchemaVersion": "1.0",
        "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}},
    }
    return (
        sagemaker.Session(
            boto_session=boto, default_bucket="bench-bucket", sagemaker_config=silent
        ),
        requests,
    )


class _Raw(io.BytesIO):
    """The part of a urllib3 response that botocore reads."""

    def stream(self, **_: Any) -> Any:
        yield self.read()


def _no_network(*_: Any) -> None:
    raise OSError("the recorder opens no connection")


def main(folder: Path) -> None:
    """Write a file per case, and the SDK's tables."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        os.environ[name] = os.devnull
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    socket.socket.connect = socket.getaddrinfo = _no_network  # type: ignore[assignment, method-assign]
    import sagemaker

    folder.mkdir(parents=True, exist_ok=True)
    held = {"sdk": f"sagemaker {sagemaker.__version__}", **tables()}
    (folder.parent / "sdk_tables.json").write_text(
        json.dumps(held, indent=1, sort_keys=True) + "\n"
    )
    with tempfile.TemporaryDirectory() as source_dir:
        (Path(source_dir) / "train.py").write_text("print('never run')\n")
        for name, case in CASES.items():
            asked = {
                "sdk": f"sagemaker {sagemaker.__version__}",
                "estimator": "sagemaker.pytorch.PyTorch",
                **case,
            }
            outcome = record(case, source_dir)
            path = folder / f"{name}.json"
            path.write_text(
                json.dumps({"asked": asked, **outcome}, indent=1, sort_keys=True) + "\n"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
