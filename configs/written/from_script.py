"""Fill a config template for the user's training script."""

from __future__ import annotations

import os.path
import re
from pathlib import Path

from nodesweep.configs.written.from_stack import sections_of, value_of, with_value

EXAMPLE = "../infra/image/examples/plain_ddp.py"
"""The script that the template measures, relative to the template."""
GIVEN_TO_NODES = "SM_HOSTS, SM_CURRENT_HOST, SM_NUM_GPUS, MASTER_ADDR and MASTER_PORT"
"""Variables in which the PyTorch toolkit describes the other nodes if there is no launcher."""
_NAME_CHARACTERS = 20
_DISTRIBUTION = re.compile(r"(?m)^  # torch_distributed .*\n  distribution: .*$")
_PLAIN = "\n".join(
    (
        "  # none starts the program unmodified, once per node. Other launchers: "
        "docs/distribution.md",
        "  distribution: {kind: none}",
        '  # Its environment has SM_HOSTS (["algo-1","algo-2"]), SM_CURRENT_HOST (its '
        "name), SM_NUM_GPUS, MASTER_ADDR (algo-1) and",
        "  # MASTER_PORT, but no rank: use them to divide the work. "
        "docs/shell-and-binaries.md has examples.",
    )
)


def name_of(script: Path) -> str:
    """Derive a benchmark name from a file name, e.g. `train-resnet` from Train_ResNet.py.

    The name is `script` if no allowed character is left.
    """
    words = re.findall("[a-z0-9]+", script.stem.lower())
    return "-".join(words)[:_NAME_CHARACTERS].rstrip("-") or "script"


def is_python(script: Path) -> bool:
    """Return True if torchrun can start the script; other programs are started directly."""
    return script.suffix == ".py"


def fill_script(
    template: str, name: str, script: Path, top: Path, template_folder: Path, folder: Path
) -> str:
    """Return the template's text for a script; relative paths are rewritten and comments kept.

    The template has its sections in block style. All paths are absolute.

    Args:
        template: Text of the template.
        name: The benchmark's name.
        script: The training script.
        top: Folder of its code: the script's own folder or one above it.
        template_folder: Folder from which the template's relative paths are resolved.
        folder: Folder of the new file.
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
