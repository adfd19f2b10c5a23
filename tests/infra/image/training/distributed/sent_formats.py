"""The training program, which also prints how many numbers of each format a rank all-reduced."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[5] / "infra" / "image"))

import torch.distributed as dist
from train import main

sent: Counter[str] = Counter()
all_reduce = dist.all_reduce


def count(tensor: Any, *arguments: Any, **options: Any) -> Any:
    """Count the tensor's numbers, and all-reduce it."""
    sent[str(tensor.dtype)] += tensor.numel()
    return all_reduce(tensor, *arguments, **options)


dist.all_reduce = count
code = main(sys.argv[1:])
print(f"sent {sent['torch.float16']} numbers of 16 bits", flush=True)
sys.exit(code)
