"""Fit an estimator on two nodes with SageMaker Python SDK v2, then attach to its job.

    python attach_estimator.py IMAGE_URI OUTPUT_S3_URI

The last line of output is what the SDK read, as JSON.
"""

from __future__ import annotations

import json
import sys

import sagemaker
from sagemaker.estimator import Estimator

image, output = sys.argv[1:]
session = sagemaker.Session(default_bucket="results")
estimator = Estimator(
    image_uri=image,
    base_job_name="attached",
    role="nodesweep-training",  # a name: the SDK gets the ARN from IAM
    instance_count=2,
    instance_type="ml.local.small",
    volume_size=1,
    output_path=output,
    hyperparameters={"program": "quick"},
    metric_definitions=[{"Name": "train:loss", "Regex": "train_loss=([^;]+);"}],
    tags=[{"Key": "team", "Value": "search"}],
    sagemaker_session=session,
)
estimator.fit(logs="All")
attached = Estimator.attach(estimator.latest_training_job.name, sagemaker_session=session)
values = attached.training_job_analytics.dataframe()
found = {
    "role": attached.role,
    "nodes": attached.instance_count,
    "max_run": attached.max_run,
    "output_kms_key": attached.output_kms_key,
    "tags": attached.tags,
    "hyperparameters": attached.hyperparameters(),
    "metrics": sorted(set(values["metric_name"])),
    "model_data": attached.model_data,
}
print(json.dumps(found))
