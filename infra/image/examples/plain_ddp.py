"""Train a classifier with DistributedDataParallel, based on PyTorch's DDP tutorial.

    torchrun --nproc-per-node 2 plain_ddp.py --epochs 5

The script reads torchrun's variables and nothing specific to SageMaker.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def ddp_setup():
    """Join the process group and return this rank's device."""
    use_cuda = torch.cuda.is_available()
    dist.init_process_group(backend="nccl" if use_cuda else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if use_cuda:
        torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")


def make_dataset(rows=2048):
    """Return points on two noisy spirals, labeled by spiral."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % 2
    angle = torch.rand(rows, generator=generator) * 6 + 1
    turn = angle + labels * torch.pi
    points = torch.stack((angle * torch.cos(turn), angle * torch.sin(turn)), dim=1)
    return TensorDataset(points + 0.1 * torch.randn(rows, 2, generator=generator), labels)


class Trainer:
    """Trains a model with DDP on one device per process."""

    def __init__(self, model, loader, optimizer, device):
        self.device = device
        self.loader = loader
        self.optimizer = optimizer
        self.model = DDP(
            model.to(device), device_ids=[device.index] if device.type == "cuda" else None
        )

    def run_epoch(self, epoch):
        """Train for one epoch and print the mean loss over all ranks."""
        self.loader.sampler.set_epoch(epoch)
        total = torch.zeros(1, device=self.device)
        for points, labels in self.loader:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(points.to(self.device)), labels.to(self.device))
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(
                f"epoch {epoch}:"
                f" loss={total.item() / len(self.loader) / dist.get_world_size():.4f};",
                flush=True,
            )

    def train(self, epochs):
        """Train for `epochs` epochs, print the time, and save the weights on rank 0."""
        started = time.perf_counter()
        for epoch in range(epochs):
            self.run_epoch(epoch)  # its all_reduce makes all ranks finish simultaneously
        seconds = time.perf_counter() - started
        print(
            f"rank={dist.get_rank()}; world_size={dist.get_world_size()};"
            f" train_seconds={seconds:.3f};",
            flush=True,
        )
        if dist.get_rank() == 0:
            torch.save(
                self.model.module.state_dict(),
                os.path.join(os.environ.get("SM_MODEL_DIR", "."), "model.pt"),
            )


def main():
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = ddp_setup()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()};", flush=True)
    dataset = make_dataset()
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=DistributedSampler(dataset))
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 2),
    )
    Trainer(model, loader, torch.optim.Adam(model.parameters(), lr=3e-3), device).train(args.epochs)
    # Lets Gloo's threads release their last tensors; a process that exits earlier may abort
    # (pytorch #190489).
    time.sleep(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
