"""What the SageMaker toolkit calls in this image (ENV SAGEMAKER_TRAINING_MODULE): PyTorch's
training, of this program.

The toolkit unpacks a job's own code into /opt/ml/code only where that folder is empty, so the
image's program lies in another one, which ENV SAGEMAKER_SUBMIT_DIRECTORY names. sagemaker-training
up to 5.1.4 reads that variable and then overwrites it by the hyperparameter's default
(environment.py, Environment.__init__): it is handed on as the hyperparameter here, and the toolkit
copies the folder to /opt/ml/code on every node before anything is launched.
"""

import os

from sagemaker_pytorch_container import training
from sagemaker_training import environment


def main() -> None:
    """Train with the image's program, or with the code that the job sends
    (sagemaker_submit_directory).
    """
    hyperparameters = environment.read_hyperparameters()
    hyperparameters.setdefault(
        "sagemaker_submit_directory", os.environ["SAGEMAKER_SUBMIT_DIRECTORY"]
    )
    training.train(environment.Environment(hyperparameters=hyperparameters))
