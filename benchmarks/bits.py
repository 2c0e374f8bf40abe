"""Digests of the products that a round on Color-MNIST is made of, to compare processors and settings.

`python -m benchmarks.bits` prints one line per product. Lines that differ between two machines, or with
`MKL_CBWR=AVX2`, `ATEN_CPU_CAPABILITY=avx2` or `ONEDNN_MAX_CPU_ISA=AVX2`, are products whose bits depend on
that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

EXAMPLES, BLOCK, INPUTS, WIDTH = 8000, 336, 392, 390


def products() -> dict[str, Callable[[], Tensor]]:
    """Return the products by name, of numbers that are the same everywhere."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape, dtype=np.float32))

    x, z, delta = normal(EXAMPLES, INPUTS).abs(), normal(EXAMPLES, WIDTH).relu(), normal(EXAMPLES, 1)
    first, second, classifier, v = (
        normal(WIDTH, INPUTS),
        normal(WIDTH, WIDTH),
        normal(1, WIDTH),
        normal(1, WIDTH),
    )
    some, errors = z[:BLOCK], delta[:BLOCK]
    odd = torch.empty(EXAMPLES, WIDTH + 2)[:, :WIDTH]
    return {
        "first layer, oneDNN": lambda: torch.ops.mkldnn._linear_pointwise(x, first, None, "none", [], ""),
        "gradient at the first layer's weights": lambda: z.T @ x,
        "gradient at the hidden layer's inputs": lambda: torch.mm(z, second, out=odd),
        "logits: matrix and vector": lambda: functional.linear(z, classifier, torch.ones(1)),
        "gradient at the classifier": lambda: delta.T @ z,
        "probabilities": lambda: torch.sigmoid(delta),
        "C_e, first moment, float64": lambda: errors.double().T @ some.double(),
        "C_e, second moment, float64": lambda: errors.double().square().T @ some.double().square(),
        "Fishr's seed at the features": lambda: errors.square() @ v,
        "Fishr's seed at the logits: matrix and vector": lambda: some.square() @ v.T,
        "Adam's division": lambda: z / (z.sqrt() + 1e-8),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, product in products().items():
        digest = hashlib.sha256(product().contiguous().numpy().tobytes()).hexdigest()[:12]
        print(f"{digest}  {name}")
