"""The models: the reference benchmark's 7-layer ranking MLP, and ResNet18 for small images."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from training.arguments import TrainingArguments
from training.errors import UserError


class RankingMLP(nn.Module):
    """`layers` dense layers with ReLU between them; features of any shape are flattened."""

    def __init__(self, features: int, classes: int, hidden_size: int, layers: int) -> None:
        super().__init__()
        widths = [features, *[hidden_size] * (layers - 1)]
        hidden = [module for pair in pairwise(widths) for module in (nn.Linear(*pair), nn.ReLU())]
        self.stack = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], classes))

    def forward(self, rows: Tensor) -> Tensor:
        """Return class scores, shape (rows, classes)."""
        return self.stack(rows)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al. 2015, arXiv 1512.03385)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels_out))

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's feature maps."""
        return torch.relu(self.convolutions(images) + self.shortcut(images))


class ResNet18(nn.Module):
    """ResNet18 in its CIFAR form: 3x3 stem, no max-pooling, so 8x8 images survive 3 halvings."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        stem = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        blocks: list[nn.Module] = []
        for channels_in, channels_out, stride in (
            (64, 64, 1),
            (64, 128, 2),
            (128, 256, 2),
            (256, 512, 2),
        ):
            blocks += [
                BasicBlock(channels_in, channels_out, stride),
                BasicBlock(channels_out, channels_out, 1),
            ]
        self.stack = nn.Sequential(
            *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, shape (rows, classes)."""
        return self.stack(images)


def build_model(
    arguments: TrainingArguments, sample_shape: tuple[int, ...], classes: int
) -> nn.Module:
    """Return the requested model, sized for the table.

    Raises:
        UserError: resnet18 is requested and the table has no images.
    """
    if arguments.model == "ranking_mlp":
        features = torch.Size(sample_shape).numel()
        return RankingMLP(features, classes, arguments.hidden_size, arguments.layers)
    if len(sample_shape) != 3:
        raise UserError(
            "--model resnet18 needs images: feature columns pixel_0, pixel_1, …, or a single column"
            " of fixed-size binary; use ranking_mlp for this table"
        )
    return ResNet18(sample_shape[0], classes)
