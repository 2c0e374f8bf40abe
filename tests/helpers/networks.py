"""Small networks that tests share, with weights from an explicit generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedilc import algorithms
from fedilc.models import build_model

NETWORK_ALGORITHMS = [name for name in algorithms.names() if not algorithms.get(name).is_newton]


def redraw(model: nn.Module, seed: int = 3, scale: float = 0.3) -> nn.Module:
    """Draw every parameter anew, so that no test depends on the global random state."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def mlp(outputs: int = 1) -> nn.Module:
    return redraw(
        nn.Sequential(
            nn.Flatten(), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, outputs)
        )
    )


def paper_cnn(outputs: int = 10) -> nn.Module:
    return build_model("cnn", (3, 16, 16), outputs, seed=5)


class TransformerBlock(nn.Module):
    """Tokens to logits: embedding, attention, normalisation, feed-forward, mean, classifier."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.classifier = nn.Linear(8, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classifier(self.norm(self.block(self.table(tokens))).mean(1))


class Convolutions(nn.Module):
    """One- and two-dimensional convolutions with groups, stride, dilation and padding modes."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding="same", padding_mode="reflect")
        self.norm = nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2, bias=False)
        self.third = nn.Conv1d(6, 4, 3, dilation=2, padding=2)
        self.classifier = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.norm(self.first(x)).relu())
        return self.classifier(self.third(x.flatten(2)).tanh().mean(2))


class Scale(nn.Module):
    """A layer no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Awkward(nn.Module):
    """A layer without a rule, one called twice, one whose weight is used by hand, in-place ReLUs."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.scale = Scale()
        self.twice = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.relu = nn.ReLU(inplace=True)
        self.classifier = nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.twice(self.scale(x)))
        x = self.relu(self.twice(x))
        x = self.relu(self.tied(x))
        return self.classifier(x @ self.tied.weight)
