"""The source folder that a ModelTrainer sends: a program for torchrun, and a package that the image doesn't have."""

from __future__ import annotations

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
FILES = {
    "train.py": TRAIN,
    "requirements.txt": "./own\n",
    "own/setup.py": 'from setuptools import setup\nsetup(name="own", py_modules=["own_requirement"])\n',
    "own/own_requirement.py": "",
}


def write_source(folder: Path) -> Path:
    """The folder with these files in it."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def facts_of(lines: list[str]) -> dict[str, str]:
    """What one node's program said of itself."""
    [line] = [line.partition("facts: ")[2] for line in lines if "facts: " in line]
    return dict(fact.split("=", 1) for fact in line.split("; "))
