"""A ModelTrainer's source folder: a program for torchrun, and a package the image lacks."""

from __future__ import annotations

import zipfile
from pathlib import Path

TRAIN = """
import argparse, os, pathlib, socket
import torch, torch.distributed as dist
import own_requirement

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, required=True)
parser.add_argument("--title", required=True)
parser.add_argument("--boom", type=int, default=-1)
arguments = parser.parse_args()
rank = int(os.environ["RANK"])
if rank == arguments.boom:
    raise ValueError(f"boom on rank {rank}")
dist.init_process_group("gloo")
total = torch.ones(1) * (rank + 1)
dist.all_reduce(total)
rows = pathlib.Path(os.environ["SM_CHANNEL_TRAINING"], "table.csv").read_text().count("\\n")
facts = [
    f"sum={int(total)}",
    f"world={dist.get_world_size()}",
    f"rows={rows}",
    f"host={os.environ['SM_CURRENT_HOST']}",
    f"name={socket.gethostname()}",
    f"folder={os.getcwd()}",
    f"lr={arguments.learning_rate}",
    f"title={arguments.title}",
    f"model_dir={os.environ['SM_MODEL_DIR']}",
    f"own={own_requirement.__file__}",
]
print("facts: " + "; ".join(facts), flush=True)
pathlib.Path(os.environ["SM_MODEL_DIR"], f"rank-{rank}.txt").write_text(f"of rank {rank}")
dist.barrier()
dist.destroy_process_group()
"""
METADATA = "Metadata-Version: 2.1\nName: own-requirement\nVersion: 1.0\n"
TAGS = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
WHEEL = "own_requirement-1.0-py3-none-any.whl"


def write_source(folder: Path) -> Path:
    """Create the folder, with a requirements.txt that needs no package index."""
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "requirements.txt").write_text(f"./{WHEEL}\n")
    info = "own_requirement-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("own_requirement.py", "")
        wheel.writestr(f"{info}/METADATA", METADATA)
        wheel.writestr(f"{info}/WHEEL", TAGS)
        wheel.writestr(f"{info}/RECORD", "")
    return folder


def facts_of(lines: list[str]) -> dict[str, str]:
    """Return the facts that the program logged on one node."""
    [line] = [line.partition("facts: ")[2] for line in lines if "facts: " in line]
    return dict(fact.split("=", 1) for fact in line.split("; "))
