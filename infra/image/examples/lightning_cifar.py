"""Train a small residual network on CIFAR-10 with PyTorch Lightning, based on its tutorial.

    python lightning_cifar.py --data-dir cifar-10-batches-bin --max_epochs 5

The folder holds CIFAR-10's binary version (https://www.cs.toronto.edu/~kriz/cifar.html): files
data_batch_*.bin and test_batch.bin of rows of one label byte and 3,072 pixel bytes.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROW_BYTES = 1 + 3 * 32 * 32


class Residual(nn.Module):
    """Two 3x3 convolutions with a skip connection."""

    def __init__(self, channels):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        """Return feature maps of the same shape as `x`."""
        return F.relu(x + self.convs(x))


class LitResNet(pl.LightningModule):
    """A one-block residual network for 3x32x32 images and 10 classes."""

    def __init__(self, lr=0.05, channels=16):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.ReLU(), Residual(channels),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(channels * 16, 10),
        )  # fmt: skip

    def forward(self, x):
        """Return log-probabilities, shape (rows, 10)."""
        return F.log_softmax(self.model(x), dim=1)

    def training_step(self, batch, batch_idx):
        """Return the loss of one batch."""
        x, y = batch
        loss = F.nll_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        """Log the accuracy of one batch, averaged over processes."""
        x, y = batch
        accuracy = (self(x).argmax(dim=1) == y).float().mean()
        self.log("val_acc", accuracy, prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        """Return SGD with momentum and weight decay."""
        return torch.optim.SGD(
            self.parameters(), lr=self.hparams.lr, momentum=0.9, weight_decay=5e-4
        )


class CIFAR10DataModule(pl.LightningDataModule):
    """CIFAR-10 from its binary files, held in memory."""

    def __init__(self, data_dir, batch_size=64):
        super().__init__()
        self.data_dir, self.batch_size = Path(data_dir), batch_size

    def read(self, pattern):
        """Read matching files; return images, (rows, 3, 32, 32) in [-0.5, 0.5], and labels."""
        rows = np.concatenate(
            [np.fromfile(file, np.uint8) for file in sorted(self.data_dir.rglob(pattern))]
        )
        rows = rows.reshape(-1, ROW_BYTES)
        images = rows[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 255
        return TensorDataset(
            torch.from_numpy(images - 0.5), torch.from_numpy(rows[:, 0].astype(np.int64))
        )

    def setup(self, stage):
        """Read the training and the test files."""
        self.train_set, self.val_set = self.read("data_batch_*.bin"), self.read("test_batch.bin")

    def train_dataloader(self):
        """Return the shuffled training batches."""
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        """Return the test batches."""
        return DataLoader(self.val_set, batch_size=self.batch_size)


def main():
    """Parse the arguments, train, and print the accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", default=os.environ.get("SM_CHANNEL_TRAINING", "./data"))
    parser.add_argument("--max_epochs", type=int, default=5)
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=64, help="per process")
    args = parser.parse_args()
    pl.seed_everything(7)
    trainer = pl.Trainer(
        max_epochs=args.max_epochs,
        accelerator="auto",
        devices="auto" if torch.cuda.is_available() else 1,
        num_nodes=args.num_nodes,
        strategy="ddp" if args.num_nodes > 1 else "auto",
        enable_progress_bar=False,
        logger=False,
        default_root_dir=os.environ.get("SM_MODEL_DIR", "."),
    )
    trainer.fit(LitResNet(), CIFAR10DataModule(args.data_dir, args.batch_size))
    print(
        f"rank {trainer.global_rank} of {trainer.world_size}:"
        f" val_acc={trainer.callback_metrics['val_acc']:.3f};",
        flush=True,
    )
    # Lets Gloo's threads release their last tensors; a process that exits earlier may abort
    # (pytorch #190489).
    time.sleep(1)


if __name__ == "__main__":
    main()
