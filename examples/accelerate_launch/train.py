"""A small CNN on generated images with Hugging Face accelerate, started by `accelerate launch`.

    nodesweep run examples/accelerate_launch/nodesweep.yaml  # 1 and 2 nodes
    accelerate launch train.py --epochs 3                    # by hand, next to nodesweep_clock.py

Lines added for nodesweep: `from nodesweep_clock import clock`, `with clock():` around the training,
`clock.step()` and `clock.metric()`. The entry point, launch.py, calls `accelerate launch` on every
node (kind none), one process per node. For nodes with several GPUs omit launch.py and use kind
torch_distributed with this file as the entry point; it starts the same processes as
`accelerate launch --multi_gpu`. Omit the stopwatch, which is only there to check T.

`cpu=` matters on nodes without a GPU: without it, accelerate ignores the other nodes, and each node
trains alone.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from nodesweep_clock import clock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_images(rows, seed):
    """Images in CIFAR-10's shape; each class is a noisy pattern."""
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (rows,), generator=generator)
    return TensorDataset(
        patterns[labels] + 3 * torch.randn(rows, 3, 32, 32, generator=generator), labels
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    args = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(make_images(2048, seed=1), batch_size=args.batch_size, shuffle=True)
    held_out = DataLoader(make_images(256, seed=2), batch_size=64)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)

    stopwatch_started = time.perf_counter()
    with clock():
        for epoch in range(args.epochs):
            for pixels, labels in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(pixels), labels)
                accelerator.backward(loss)
                optimizer.step()
                clock.step(len(labels))
            if accelerator.is_main_process:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        right = []
        with torch.no_grad():
            for pixels, labels in held_out:
                right.append(accelerator.gather_for_metrics(model(pixels).argmax(dim=1) == labels))
        clock.metric("accuracy", torch.cat(right).float().mean().item(), goal="maximize")
    stopwatch_seconds = time.perf_counter() - stopwatch_started
    if accelerator.is_main_process:
        print(f"stopwatch: {stopwatch_seconds:.4f} s", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
