"""Import this before torchvision to use the classifiers of PyPI's torchvision with a CPU torch.

The compiled part of that wheel needs CUDA's libraries. If it can't be loaded, `import torchvision`
(0.28) fails with "operator torchvision::nms does not exist", because nothing declares two detection
operators. This module declares them without an implementation. With the wheel from
PyTorch's CPU index, or a torch with CUDA, it does nothing.
"""

from importlib.metadata import version

import torch

if torch.version.cuda is None and "+cpu" not in version("torchvision"):
    for name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
