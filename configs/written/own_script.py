"""A config for a script of one's own: a template's text with the script's name and place."""

from __future__ import annotations

import os.path
import re
from pathlib import Path

from nodesweep.configs.written.from_stack import sections_of, value_of, with_value

EXAMPLE = "../infra/image/examples/plain_ddp.py"
"""The script that the template measures, seen from the template."""
GIVEN_TO_NODES = "SM_HOSTS, SM_CURRENT_HOST, SM_NUM_GPUS, MASTER_ADDR and MASTER_PORT"
"""Variables that tell a program without a launcher of the other nodes, by the PyTorch toolkit."""
_NAME_CHARACTERS = 20
_DISTRIBUTION = re.compile(r"(?m)^  distribution: .*$")
_PLAIN = "\n".join(
    (
        "  distribution: {kind: none}           # started as it is, once on every node;"
        " other launchers: docs/distribution.md",
        '  # It finds SM_HOSTS (["algo-1","algo-2"]), SM_CURRENT_HOST (its own of them),'
        " SM_NUM_GPUS, MASTER_ADDR (algo-1) and",
        "  # MASTER_PORT, and no rank: it divides the work by them."
        " docs/shell-and-binaries.md has an example of each.",
    )
)


def name_of(script: Path) -> str:
    """A benchmark's name out of the script's, e.g. `train-resnet` of Train_ResNet.py;
    `script` if nothing is left.
    """
    words = re.findall("[a-z0-9]+", script.stem.lower())
    return "-".join(words)[:_NAME_CHARACTERS].rstrip("-") or "script"


def is_python(script: Path) -> bool:
    """Return whether torchrun can start it; anything else is started as it is."""
    return script.suffix == ".py"


def fill_script(
    template: str, name: str, script: Path, top: Path, template_folder: Path, folder: Path
) -> str:
    """The template's text for this script, its relative paths right for a file in `folder`;
    all paths absolute. `top`: the folder of its code, its own or one above.

    The template has its sections in block style. Comments stay.
    """
    sections = sections_of(template)
    sections["name"] = f"name: {name}\n"
    context = template_folder / value_of(sections["image"], "context")
    sections["image"] = with_value(sections["image"], "context", os.path.relpath(context, folder))
    training = with_value(sections["training"], "source_dir", os.path.relpath(top, folder))
    training = with_value(training, "entry_point", script.relative_to(top).as_posix())
    if not is_python(script):
        training = _DISTRIBUTION.sub(lambda _: _PLAIN, training, count=1)
    sections["training"] = training
    return "".join(sections.values())
