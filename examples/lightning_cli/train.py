"""torchvision's ResNet-18 on generated images, as a LightningCLI application.

    nodesweep run examples/lightning_cli/nodesweep.yaml          # 1 and 2 nodes
    torchrun --nproc-per-node 2 train.py --trainer.max_epochs 1  # by hand, with nodesweep_clock.py

Lines added for nodesweep: the callback `ClockCallback` in the CLI's `trainer_defaults`. Two things
differ from the usual `LightningCLI(Model, Data)`, since hyperparameters are passed only as
`--name value`: `run=False` and `trainer.fit` replace the subcommand `fit`, and the config sets
`--trainer.num_nodes`, which Lightning doesn't read from torchrun's variables. Omit the stopwatch
(Lightning's Timer), which is only there to check T.
"""

# Imported first, because Lightning imports torchvision; not needed with a wheel that matches torch.
import torchvision_on_cpu  # noqa: F401

# isort: split
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from nodesweep_clock import clock
from pytorch_lightning.callbacks import Timer
from pytorch_lightning.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18


class ClockCallback(pl.Callback):
    """Measures T from the first batch to the last validation, without the sanity check."""

    def on_train_start(self, trainer, module):
        clock().__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        # With accumulate_grad_batches=k, call it after every k-th batch, for the samples of all k.
        clock.step(len(batch[0]))

    def on_train_end(self, trainer, module):
        clock.metric("accuracy", trainer.callback_metrics["accuracy"].item(), goal="maximize")
        clock.__exit__(None, None, None)


class ResNet18(pl.LightningModule):
    def __init__(self, learning_rate: float = 1e-3):
        super().__init__()
        self.learning_rate = learning_rate
        self.model = resnet18(num_classes=10)

    def training_step(self, batch, batch_index):
        images, labels = batch
        return F.cross_entropy(self.model(images), labels)

    def validation_step(self, batch, batch_index):
        images, labels = batch
        accuracy = (self.model(images).argmax(dim=1) == labels).float().mean()
        self.log("accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class MadeUpImages(pl.LightningDataModule):
    """Images in CIFAR-10's shape; each class is a noisy pattern."""

    def __init__(self, batch_size: int = 64, rows: int = 512):
        super().__init__()
        self.batch_size, self.rows = batch_size, rows

    def make(self, rows, seed):
        patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(10, (rows,), generator=generator)
        return TensorDataset(
            patterns[labels] + torch.randn(rows, 3, 32, 32, generator=generator), labels
        )

    def train_dataloader(self):
        return DataLoader(self.make(self.rows, seed=1), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.make(128, seed=2), batch_size=self.batch_size)


if __name__ == "__main__":
    stopwatch = Timer()
    cli = LightningCLI(
        ResNet18,
        MadeUpImages,
        run=False,
        save_config_callback=None,
        seed_everything_default=1,
        trainer_defaults={
            "callbacks": [ClockCallback(), stopwatch],
            "strategy": "ddp",
            "max_epochs": 2,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
        },
    )
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    if cli.trainer.is_global_zero:
        print(f"stopwatch: {stopwatch.time_elapsed('train'):.4f} s", flush=True)
