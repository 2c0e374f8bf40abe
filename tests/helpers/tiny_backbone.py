"""A backbone of the tests' own: three fixed filters, and small pictures by class and domain for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

MODULE = """
import torch
from torch import nn


class Tiny(nn.Module):
    image_size = 8
    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)

    def __init__(self, scale):
        super().__init__()
        self.filters = nn.Conv2d(3, 6, 4, stride=4)
        with torch.no_grad():
            weights = torch.linspace(-1, 1, self.filters.weight.numel()).sin()
            self.filters.weight.copy_(scale * weights.reshape(self.filters.weight.shape))
            self.filters.bias.zero_()

    def forward(self, pictures):
        return self.filters(pictures).flatten(1)


def build():
    return Tiny(SCALE)
"""
FEATURES = 24


def write_module(folder: Path, name: str = "tiny_eye", scale: float = 1.0) -> str:
    """Write the module of a backbone; return it as `module:function`."""
    (folder / f"{name}.py").write_text(f"SCALE = {scale}\n{MODULE}")
    return f"{name}:build"


def draw_pictures(folder: Path, domains: tuple[str, ...], each: int = 12, size: int = 12) -> Path:
    """Draw pictures that are brighter at the top or at the bottom, in the tint of their domain."""
    random = np.random.default_rng(0)
    for place, domain in enumerate(domains):
        for name in ("bottom", "top"):
            target = folder / domain / name
            target.mkdir(parents=True)
            for number in range(each):
                pixels = random.integers(0, 120, (size, size, 3))
                half = slice(size // 2) if name == "top" else slice(size // 2, None)
                pixels[half] += 100
                pixels[..., place % 3] += 30
                Image.fromarray(pixels.astype(np.uint8)).save(target / f"{number}.png")
    return folder
