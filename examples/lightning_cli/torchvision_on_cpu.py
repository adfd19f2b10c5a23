"""Imported before torchvision: lets PyPI's torchvision be imported beside a CPU torch, for the
classifiers in it.

That wheel's compiled part asks for CUDA's libraries. Where it can't be loaded, `import torchvision`
(0.28) ends with "operator torchvision::nms does not exist": it describes two operators of detection
that nobody has declared. They are declared here, without what they would do. With the wheel of
PyTorch's CPU index, or torch with CUDA, this does nothing.
"""

from importlib.metadata import version

import torch

if torch.version.cuda is None and "+cpu" not in version("torchvision"):
    for name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
