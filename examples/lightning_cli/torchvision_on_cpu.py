"""Imported before torchvision: lets PyPI's torchvision be imported beside a CPU torch, for the classifiers in it.

That wheel's compiled part asks for CUDA's libraries. Where it can't be loaded, `import torchvision` (0.28) ends with
"operator torchvision::nms does not exist": it describes two operators of detection that nobody has declared. They are
declared here, without what they would do. The wheel that fits (requirements.txt) needs none of this, nor does a GPU.
"""

from importlib.metadata import version

import torch

if torch.version.cuda is None and "+cpu" not in version("torchvision"):
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
