"""Two remedies for slow training on the CPU: linear layers of odd widths, and memory that is freed.

`FastLinear` runs linear layers whose widths are no multiple of 8 with oneDNN's product, which is faster for
them than that of BLAS. `keep_freed_memory` keeps freed blocks in the process: otherwise every pass gets its
memory from the system anew, page by page.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LANES = 8
LEAST_ROWS, LEAST_WIDTH = 256, 64
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's own numbers
_KEEP = 2**31 - 1
_RETURN = 32 << 20  # glibc's own upper bound for the sizes it adapts to

_lock = threading.Lock()
_users = 0


class FastLinear(TorchFunctionMode):
    """A context in which linear layers of odd widths use oneDNN's product."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is functional.linear and not kwargs and suits(*args):
            apply: Callable[..., Tensor] = _Linear.apply
            return apply(args[0], args[1], args[2] if len(args) > 2 else None)
        return func(*args, **(kwargs or {}))


def suits(x: Any, weight: Any, bias: Any = None) -> bool:
    """Return whether oneDNN's product takes these operands and is worth its overhead."""
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    return (
        all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)
        and all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
        and (x.dim(), weight.dim()) == (2, 2)
        and len(x) >= LEAST_ROWS
        and x.shape[1] == weight.shape[1]
        and (_odd(weight.shape[0]) or _odd(weight.shape[1]))
        and not torch.is_autocast_enabled("cpu")
        and has_product()
    )


@cache
def has_product() -> bool:
    """Return whether oneDNN's product works in this torch; if not, layers use torch's plain product.

    It is tried once, because its name is private: a version of torch may lack it, or give it other arguments.
    """
    shapes = ((2, 3), (4, 3), (4,))
    x, weight, bias = (torch.ones(shape, dtype=torch.float32, device="cpu") for shape in shapes)
    try:
        return torch.equal(_product(x, weight, bias), functional.linear(x, weight, bias))
    except (AttributeError, RuntimeError):
        return False


class _Linear(torch.autograd.Function):
    """x W^T + b, differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        if _odd(len(weight)):
            return _product(x, weight, bias)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        to_x = _times(gradient, weight) if ctx.needs_input_grad[0] else None
        to_weight = gradient.t() @ x if ctx.needs_input_grad[1] else None
        return to_x, to_weight, gradient.sum(0) if ctx.needs_input_grad[2] else None


def _odd(width: int) -> bool:
    return width >= LEAST_WIDTH and width % LANES != 0


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # No public name of torch gives oneDNN's product for dense float32 tensors: functional.linear uses BLAS.
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _times(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right; if the result has an odd width, in memory whose rows are padded to whole lanes."""
    width = right.shape[1]
    if torch.is_grad_enabled() or not _odd(width):
        return left @ right
    padded = left.new_empty(len(left), width + -width % LANES)[:, :width]
    return torch.mm(left, right, out=padded)


def keep_freed_memory(owner: object) -> None:
    """Keep freed memory in the process while `owner` exists; this has an effect only with glibc."""
    global _users
    if _glibc() is None:
        return
    with _lock:
        _users += 1
        if _users == 1:
            _set_thresholds(_KEEP)
    weakref.finalize(owner, _release).atexit = False


def return_freed_memory(least: int) -> None:
    """Return blocks of at least this many bytes to the system when they are freed.

    This is for a process that holds large messages for a moment, in many threads: glibc would keep up to 32
        MB
    of freed blocks in the heap of each thread.
    """
    if _glibc() is not None:
        _glibc().mallopt(_MMAP_THRESHOLD, least)


def _release() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _set_thresholds(_RETURN)
            _glibc().malloc_trim(0)


def _set_thresholds(size: int) -> None:
    _glibc().mallopt(_MMAP_THRESHOLD, size)
    _glibc().mallopt(_TRIM_THRESHOLD, size)


@cache
def _glibc() -> Any:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
