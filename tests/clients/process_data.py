"""Run a ScriptProcessor and a PySparkProcessor of SageMaker Python SDK v2 on two nodes each.

    python process_data.py IMAGE_URI APP

The last line of output is the SDK's description of the first job's end, as JSON.
"""

from __future__ import annotations

import json
import sys

import sagemaker
from sagemaker.processing import ProcessingInput, ProcessingOutput, ScriptProcessor
from sagemaker.spark.processing import PySparkProcessor

image, app = sys.argv[1:]
common = {
    "image_uri": image,
    "role": "nodesweep-training",  # a name: the SDK gets the ARN from IAM
    "instance_count": 2,
    "instance_type": "ml.local.small",
    "sagemaker_session": sagemaker.Session(default_bucket="results"),
    "env": {"PROGRAM": "look"},
}
script = ScriptProcessor(command=["python3"], base_job_name="script", **common)
script.run(
    code=app,
    inputs=[ProcessingInput(source="s3://rows/in", destination="/opt/ml/processing/in")],
    outputs=[ProcessingOutput(source="/opt/ml/processing/out", destination="s3://results/out")],
    arguments=["--limit", "3"],
)
spark = PySparkProcessor(base_job_name="spark", framework_version="3.5", **common)
spark.run(
    submit_app=app,
    arguments=["--limit", "4"],
    spark_event_logs_s3_uri="s3://results/events",
    configuration=[{"Classification": "spark-defaults", "Properties": {"spark.x": "1"}}],
)
job = script.latest_job.describe()
print(json.dumps({name: job[name] for name in ("ProcessingJobStatus", "ExitMessage")}))
