"""A config for a script of one's own: a template's text with the script's name and place."""

from __future__ import annotations

import os.path
import re
from pathlib import Path

from configs.written.from_stack import sections_of, value_of, with_value

EXAMPLE = "../infra/image/examples/plain_ddp.py"
"""The script that the template measures, seen from the template."""
_NAME_CHARACTERS = 20


def name_of(script: Path) -> str:
    """A benchmark's name out of the script's, e.g. `train-resnet` of Train_ResNet.py;
    `script` if nothing is left.
    """
    words = re.findall("[a-z0-9]+", script.stem.lower())
    return "-".join(words)[:_NAME_CHARACTERS].rstrip("-") or "script"


def fill_script(template: str, name: str, script: Path, template_folder: Path, folder: Path) -> str:
    """The template's text for this script, its relative paths right for a file in `folder`;
    all paths absolute.

    The template has its sections in block style. Comments stay.
    """
    sections = sections_of(template)
    sections["name"] = f"name: {name}\n"
    context = template_folder / value_of(sections["image"], "context")
    sections["image"] = with_value(sections["image"], "context", os.path.relpath(context, folder))
    training = with_value(
        sections["training"], "source_dir", os.path.relpath(script.parent, folder)
    )
    sections["training"] = with_value(training, "entry_point", script.name)
    return "".join(sections.values())
