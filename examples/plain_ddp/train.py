"""A small CNN on generated images, trained with DistributedDataParallel as in PyTorch's tutorial.

    nodesweep run examples/plain_ddp/nodesweep.yaml  # 1 and 2 nodes
    torchrun --nproc-per-node 2 train.py --epochs 3  # by hand, next to nodesweep_clock.py

Lines added for nodesweep: `from nodesweep_clock import clock`, `with clock():` around the training,
`clock.step()` after each optimizer step and `clock.metric()` for the result. The rest is plain
PyTorch; the ranks come from torchrun's variables. Omit the stopwatch, which is only there to check
T.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from nodesweep_clock import clock
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_images(rows, seed):
    """Images in CIFAR-10's shape; each class is a noisy pattern."""
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (rows,), generator=generator)
    return TensorDataset(
        patterns[labels] + 3 * torch.randn(rows, 3, 32, 32, generator=generator), labels
    )


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
    )  # fmt: skip


def accuracy(model, images):
    """Return the accuracy on all images; every rank computes the same value."""
    pixels, labels = images.tensors
    with torch.no_grad():
        return (model(pixels.to(device)).argmax(dim=1).cpu() == labels).float().mean().item()


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=64, help="per process")
args = parser.parse_args()

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
torch.manual_seed(0)
images, held_out = make_images(2048, seed=1), make_images(256, seed=2)
sampler = DistributedSampler(images)
loader = DataLoader(images, batch_size=args.batch_size, sampler=sampler)
# waits for all ranks, so that they enter the clock simultaneously
model = DistributedDataParallel(make_model().to(device))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

stopwatch_started = time.perf_counter()
with clock():
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for pixels, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(pixels.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            clock.step(len(labels))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    clock.metric("accuracy", accuracy(model.module, held_out), goal="maximize")
stopwatch_seconds = time.perf_counter() - stopwatch_started
if dist.get_rank() == 0:
    print(f"stopwatch: {stopwatch_seconds:.4f} s", flush=True)
    torch.save(
        model.module.state_dict(), os.path.join(os.environ.get("SM_MODEL_DIR", "."), "model.pt")
    )
dist.destroy_process_group()
