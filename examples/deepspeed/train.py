"""A small CNN on generated images with DeepSpeed (ZeRO 1), started by DeepSpeed's launcher.

    nodesweep run examples/deepspeed/nodesweep.yaml  # 1 and 2 nodes
    deepspeed train.py --epochs 3                    # by hand, next to nodesweep_clock.py

Lines added for nodesweep: `from nodesweep_clock import clock`, a barrier and `with clock():` around
the training, `clock.step()` and `clock.metric()`. The entry point, launch.py, calls
`deepspeed --no_ssh` on every node (kind none), one process per node. For nodes with several GPUs
omit launch.py and use kind torch_distributed with this file as the entry point:
deepspeed.init_distributed reads torchrun's variables. Omit the stopwatch, which is only there to
check T.
"""

import argparse
import time

import deepspeed
import torch
import torch.nn.functional as F
from nodesweep_clock import clock
from torch import nn
from torch.utils.data import TensorDataset


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

    # On CPUs, DeepSpeed would first spend a minute or more compiling an all-reduce for the ranks of
    # a node, but each node has only one rank.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
    )  # fmt: skip
    # PyTorch's Adam, because DeepSpeed compiles its own Adam on first use, which takes minutes and
    # needs a compiler in the image.
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        training_data=make_images(2048, seed=1),
        config={
            "train_micro_batch_size_per_gpu": args.batch_size,
            "zero_optimization": {"stage": 1},
        },
    )

    deepspeed.comm.barrier()  # so that all ranks enter the clock simultaneously
    stopwatch_started = time.perf_counter()
    with clock():
        for epoch in range(args.epochs):
            loader.data_sampler.set_epoch(epoch)
            for pixels, labels in loader:
                loss = F.cross_entropy(engine(pixels.to(engine.device)), labels.to(engine.device))
                engine.backward(loss)
                engine.step()
                clock.step(len(labels))
            if engine.global_rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        pixels, labels = make_images(256, seed=2).tensors
        with torch.no_grad():
            right = engine(pixels.to(engine.device)).argmax(dim=1).cpu() == labels
        clock.metric("accuracy", right.float().mean().item(), goal="maximize")
    if engine.global_rank == 0:
        print(f"stopwatch: {time.perf_counter() - stopwatch_started:.4f} s", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
