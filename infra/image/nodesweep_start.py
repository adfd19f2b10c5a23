"""Start PyTorch training with the shipped program, called by the SageMaker toolkit.

ENV SAGEMAKER_TRAINING_MODULE names this module. The toolkit unpacks a job's own code into
/opt/ml/code only if that folder is empty, so the shipped program is elsewhere, in
SAGEMAKER_SUBMIT_DIRECTORY. sagemaker-training up to 5.1.4 reads that variable and then overwrites
it with the hyperparameter's default (environment.py, Environment.__init__), so it is passed on as
the hyperparameter, and the toolkit copies the folder to /opt/ml/code on every node before it
launches anything.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import nodesweep_exchange
import nodesweep_measure
from sagemaker_pytorch_container import training
from sagemaker_training import environment


def stand_in_for_torch() -> None:
    """Give the toolkit a substitute for torch with only its version, which is all it uses.

    The program runs in a different process. Importing torch here as well added 1.1 s to the start
    of one emulated node, and 5.1 s to the start of eight nodes on 2 cores.
    """
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if file is not None and file.exists():
        module = ModuleType("torch")
        exec(file.read_text(), module.__dict__)
        sys.modules.setdefault("torch", module)


def main() -> None:
    """Train with the job's code (sagemaker_submit_directory) or, without any, the shipped program.

    Only the job's code is measured from outside, and all-reduces are timed before it starts; the
    shipped program measures and times them itself.
    """
    hyperparameters = environment.read_hyperparameters()
    is_of_job = "sagemaker_submit_directory" in hyperparameters
    if not is_of_job:
        os.environ[nodesweep_measure.SWITCH] = "off"
    hyperparameters.setdefault(
        "sagemaker_submit_directory", os.environ["SAGEMAKER_SUBMIT_DIRECTORY"]
    )
    stand_in_for_torch()
    job = environment.Environment(hyperparameters=hyperparameters)
    if is_of_job and os.environ.get(nodesweep_exchange.ASKED_BY) == "1":
        nodesweep_exchange.time_on_sagemaker(job)
    training.train(job)
    if is_of_job:
        nodesweep_measure.explain_absence()
