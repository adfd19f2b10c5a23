"""Build the CreateProcessingJob request of the Spark job that validates a dataset.

The job reads the data in place with the execution role. Its only input is the validation request
(tasks/dataset/spark/contract.py), and its only output is the verdict.
"""

from __future__ import annotations

from typing import Any

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.request import network_members, without_none
from nodesweep.scaling import names

ENTRYPOINT = ("smspark-submit", "/opt/nodesweep/validate_dataset.py")
"""The command of the AWS Spark image, and the program that infra/image_spark adds to it."""
REQUEST_PATH = "/opt/ml/processing/input/request"
VERDICT_PATH = "/opt/ml/processing/output/verdict"
LOG_GROUP = "/aws/sagemaker/ProcessingJobs"


def build_validation_request(
    config: BenchmarkConfig, sweep: str, image_uri: str, document_digest: str, attempt: int = 1
) -> dict[str, Any]:
    """Return the CreateProcessingJob request of one attempt.

    `document_digest` is the digest of the job's input document, which lists the dataset's objects
    and expectations. It makes sure that jobs of the same name have the same input.
    """
    asked, training, platform = config.validation, config.training, config.platform
    request: dict[str, Any] = {
        "ProcessingResources": {
            "ClusterConfig": {
                "InstanceType": asked.instance_type,
                "InstanceCount": asked.instance_count,
                "VolumeSizeInGB": asked.volume_size_gb,
                **without_none(VolumeKmsKeyId=training.volume_kms_key_id),
            }
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": asked.max_runtime_seconds},
        "AppSpecification": {"ImageUri": image_uri, "ContainerEntrypoint": list(ENTRYPOINT)},
        "RoleArn": platform.role_arn,
        **without_none(NetworkConfig=network_members(training) or None),
    }
    digest = names.canonical_digest(
        {"request": request, "document": document_digest, "key": training.output_kms_key_id}
    )
    job = names.validation_job_name(sweep, attempt, digest)
    request_key = names.validation_request_key(platform.prefix, sweep, job)
    verdict_key = names.validation_verdict_key(platform.prefix, sweep, job)
    tags = {
        names.TAG_SWEEP_ID: sweep,
        names.TAG_REQUEST_DIGEST: digest,
        "nodesweep:attempt": str(attempt),
        **training.tags,
    }
    return {
        "ProcessingJobName": job,
        **request,
        "ProcessingInputs": [_input(_folder_uri(platform.bucket, request_key))],
        "ProcessingOutputConfig": {
            "Outputs": [_output(_folder_uri(platform.bucket, verdict_key))],
            **without_none(KmsKeyId=training.output_kms_key_id),
        },
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }


def _folder_uri(bucket: str, key: str) -> str:
    return f"s3://{bucket}/{key.rpartition('/')[0]}"


def _input(uri: str) -> dict[str, Any]:
    return {
        "InputName": "request",
        "S3Input": {
            "S3Uri": uri,
            "LocalPath": REQUEST_PATH,
            "S3DataType": "S3Prefix",
            "S3InputMode": "File",
            "S3DataDistributionType": "FullyReplicated",
        },
    }


def _output(uri: str) -> dict[str, Any]:
    location = {"S3Uri": uri, "LocalPath": VERDICT_PATH, "S3UploadMode": "EndOfJob"}
    return {"OutputName": "verdict", "S3Output": location}
