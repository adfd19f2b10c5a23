"""Start PyTorch training with the image's program, called by the SageMaker toolkit.

ENV SAGEMAKER_TRAINING_MODULE names this module. The toolkit unpacks a job's own code into
/opt/ml/code only if that folder is empty, so the image's program is elsewhere, in
SAGEMAKER_SUBMIT_DIRECTORY. sagemaker-training up to 5.1.4 reads that variable and then overwrites
it with the hyperparameter's default (environment.py, Environment.__init__), so it is passed on as
the hyperparameter, and the toolkit copies the folder to /opt/ml/code on every node before it
launches anything.
"""

import os

from sagemaker_pytorch_container import training
from sagemaker_training import environment


def main() -> None:
    """Train with the job's code (sagemaker_submit_directory) or else the image's program."""
    hyperparameters = environment.read_hyperparameters()
    hyperparameters.setdefault(
        "sagemaker_submit_directory", os.environ["SAGEMAKER_SUBMIT_DIRECTORY"]
    )
    training.train(environment.Environment(hyperparameters=hyperparameters))
