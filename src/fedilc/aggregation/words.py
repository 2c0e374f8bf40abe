"""What the compiled kernels are made of: bits read as numbers, polynomials, products of five values.

A compiler turns a loop into SIMD code only where it has an instruction for every step. Hence whole numbers
become float64 by their bits, signs are told by comparing bits, and exponents are split off by shifts.
The functions compiled by numba have no type annotations: numba infers their types. It keeps compiled code
until the file of the kernel itself changes: after a change here, touch those that import this module.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

GROUP = 5
TILE = 1024
IGNORE, STRICT, AUTHORS = 0, 1, 2

U0, U32, U52 = (np.uint64(n) for n in (0, 32, 52))
LOWER = np.uint64((1 << 32) - 1)
UPPER = np.uint64(((1 << 32) - 1) << 32)
MANTISSA = np.uint64((1 << 52) - 1)
UNSIGNED = np.uint64((1 << 63) - 1)
ONE_BITS = np.uint64(1023 << 52)
AS_DOUBLE_BITS, AS_DOUBLE = np.uint64(0x4330 << 48), 2.0**52
OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"contract"}}

_SIGN = np.int64(-(2**63))

Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def fit(function: Function, low: float, high: float, degree: int) -> tuple[float, ...]:
    """Coefficients, lowest first, of a near-minimax polynomial."""
    fitted = Chebyshev.interpolate(function, degree, domain=[low, high])
    return tuple(float(c) for c in fitted.convert(kind=Polynomial).coef)


def _cast(to: Any, source: Any, kind: ir.Type) -> Any:
    """A numba function that reads the bits of one scalar type as another."""

    @intrinsic
    def cast(_: Any, _value: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], kind)

        return to(source), generate

    return cast


bits = _cast(types.uint64, types.float64, ir.IntType(64))
signed_bits = _cast(types.int64, types.float64, ir.IntType(64))
double = _cast(types.float64, types.uint64, ir.DoubleType())
bits32 = _cast(types.int32, types.float32, ir.IntType(32))
single = _cast(types.float32, types.int32, ir.FloatType())


@intrinsic
def pointer(_: Any, _address: Any) -> Any:
    """An address as a pointer to float32 numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


@njit(inline="always", **OPTIONS)
def polynomial(coefficients, x):
    """Horner's rule."""
    total = coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        total = total * x + coefficients[k]
    return total


@njit(inline="always", **OPTIONS)
def products(a, b, c, d, e):
    """Products of the positive and of the negative among five float32 values, in float64, and their counts.

    The second product keeps its sign. NaN and infinity show in one of the two.
    """
    va, vb, vc, vd, ve = np.float64(a), np.float64(b), np.float64(c), np.float64(d), np.float64(e)
    xa, xb, xc, xd, xe = signed_bits(va), signed_bits(vb), signed_bits(vc), signed_bits(vd), signed_bits(ve)
    pa, pb, pc, pd, pe = xa > 0, xb > 0, xc > 0, xd > 0, xe > 0
    xa, xb, xc, xd, xe = xa ^ _SIGN, xb ^ _SIGN, xc ^ _SIGN, xd ^ _SIGN, xe ^ _SIGN
    na, nb, nc, nd, ne = xa > 0, xb > 0, xc > 0, xd > 0, xe > 0
    up = ((va if pa else 1.0) * (vb if pb else 1.0)) * ((vc if pc else 1.0) * (vd if pd else 1.0))
    down = ((va if na else 1.0) * (vb if nb else 1.0)) * ((vc if nc else 1.0) * (vd if nd else 1.0))
    ups = np.uint64(pa) + np.uint64(pb) + np.uint64(pc) + np.uint64(pd) + np.uint64(pe)
    downs = np.uint64(na) + np.uint64(nb) + np.uint64(nc) + np.uint64(nd) + np.uint64(ne)
    return up * (ve if pe else 1.0), down * (ve if ne else 1.0), ups, downs
