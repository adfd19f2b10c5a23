"""Train with a ModelTrainer of SageMaker Python SDK v3, as a user would without nodesweep.

python train_model.py IMAGE SOURCE_DIR DATA_S3_URI TYPE[,TYPE…] TRAINING_PLAN_ARN|- [BOOM]
"""

import logging
import sys

from sagemaker.core.shapes import InstancePreference
from sagemaker.core.training.configs import Compute, InputData, SourceCode
from sagemaker.train import ModelTrainer
from sagemaker.train.distributed import Torchrun

# The SDK logs the job's lines at INFO.
logging.basicConfig(level=logging.INFO, format="%(message)s")
image, source_dir, data, types, plan, *boom = sys.argv[1:]
asked = {"instance_type": types}
if "," in types:
    preferences = [InstancePreference(instance_type=name) for name in types.split(",")]
    asked = {"instance_preferences": preferences}
if plan != "-":
    asked["training_plan_arn"] = plan
hyperparameters = {"learning-rate": 0.1, "title": "two words"}
if boom:
    hyperparameters["boom"] = boom[0]
trainer = ModelTrainer(
    training_image=image,
    role="arn:aws:iam::000000000000:role/nodesweep-training",
    base_job_name="own-model",
    source_code=SourceCode(
        source_dir=source_dir,
        entry_script="train.py",
        requirements="requirements.txt",
    ),
    distributed=Torchrun(process_count_per_node=1),
    compute=Compute(**asked, instance_count=2, volume_size_in_gb=1),
    hyperparameters=hyperparameters,
)
channel = InputData(channel_name="training", data_source=data)
trainer.train(input_data_config=[channel], wait=not boom)
print(f"job={trainer._latest_training_job.training_job_name}")
