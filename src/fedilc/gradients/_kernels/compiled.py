"""The loop of local steps that numba compiles: plain SGD of perceptrons with few weights.

Inside the loop the weight of a layer is (inputs, outputs), so that the innermost loops run along memory and
no sum is cut into parts: every sum has the order in which its terms are written here. Functions have no type
annotations: numba infers their types.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from fedilc.aggregation._kernels.values import OPTIONS


@njit(**OPTIONS)
def _turn(widths, given, found, back):
    """Write the parameters with each layer's weight transposed: to (inputs, outputs), or back."""
    start = 0
    for layer in range(len(widths) - 1):
        p, q = widths[layer], widths[layer + 1]
        for k in range(p):
            for j in range(q):
                ours, torchs = start + k * q + j, start + j * p + k
                if back:
                    found[torchs] = given[ours]
                else:
                    found[ours] = given[torchs]
        start += p * q
        found[start : start + q] = given[start : start + q]
        start += q


@njit(inline="always", **OPTIONS)
def _part(values, start, rows, columns):
    """Return a matrix in a row of memory: without gaps, the innermost loops become vector instructions."""
    return values[start : start + rows * columns].reshape(rows, columns)


@njit(**OPTIONS)
def _forward(inputs, weight, bias, out):
    for i in range(len(inputs)):
        row = out[i]
        row[:] = bias
        for k in range(len(weight)):
            a, wk = inputs[i, k], weight[k]
            for j in range(len(row)):
                row[j] += a * wk[j]


@njit(**OPTIONS)
def _relu(values):
    for j in range(len(values)):
        values[j] = 0 if values[j] < 0 else values[j]  # NaN stays NaN


@njit(**OPTIONS)
def _weight_gradient(inputs, delta, weight, bias):
    weight[:] = 0
    bias[:] = 0
    for i in range(len(inputs)):
        row = delta[i]
        for j in range(len(row)):
            bias[j] += row[j]
        for k in range(len(weight)):
            a, wk = inputs[i, k], weight[k]
            for j in range(len(row)):
                wk[j] += a * row[j]


@njit(**OPTIONS)
def _input_gradient(delta, weight, inputs, turned, out):
    """Write the gradient at the inputs of a layer, which are another's outputs after ReLU."""
    for k in range(len(weight)):
        for j in range(len(turned)):
            turned[j, k] = weight[k, j]
    for i in range(len(delta)):
        row, seen = out[i], inputs[i]
        row[:] = 0
        for j in range(len(turned)):
            d, wj = delta[i, j], turned[j]
            for k in range(len(row)):
                row[k] += d * wj[k]
        for k in range(len(row)):
            row[k] = 0 if seen[k] <= 0 else row[k]


@njit(**OPTIONS)
def _one_output(z, t, kind):
    """Return the loss of an example with one output, and its derivative: all in float64."""
    if kind == 0:
        small = math.exp(-abs(z))
        p = 1 / (1 + small) if z >= 0 else small / (1 + small)
        return max(z, 0.0) - z * t + math.log1p(small), p - t
    error = z - t
    if kind == 3 and abs(error) > 1:
        return abs(error) - 0.5, math.copysign(1.0, error)
    return error * error / 2, error


@njit(**OPTIONS)
def _losses(logits, labels, class_weights, kind, delta):
    """Write the gradient of the mean loss at the logits, and return the sum of the losses."""
    total = 0.0
    for i in range(len(logits)):
        row, share = logits[i], 1 / len(logits)
        if kind == 1:
            label = int(labels[i])
            top = np.float64(row[0])
            for j in range(len(row)):
                top = max(top, np.float64(row[j]))
            whole = 0.0
            for j in range(len(row)):
                whole += math.exp(row[j] - top)
            loss = math.log(whole) + top - row[label]
        else:
            label = int(labels[i]) if len(class_weights) else 0
            loss, derivative = _one_output(np.float64(row[0]), np.float64(labels[i]), kind)
        if len(class_weights):
            loss *= class_weights[label]
            share *= class_weights[label]
        total += loss
        if kind == 1:
            for j in range(len(row)):
                delta[i, j] = (math.exp(row[j] - top) / whole - (j == label)) * share
        else:
            delta[i, 0] = derivative * share
    return total


_SIGNATURE = (
    "void(int64, int64, {0}[:, :, :], {0}[:, :], int64[:, :, ::1], int64[::1], int64, int64, int64[::1], "
    "{0}[::1], float64, {0}[:, ::1], float64[::1], int64, {0}[:, ::1], {0}[:, ::1], float64[::1])"
)


@njit([_SIGNATURE.format("float32"), _SIGNATURE.format("float64")], **OPTIONS)
def take_steps(
    start,
    stop,
    x,
    y,
    orders,
    which,
    size,
    steps,
    widths,
    rates,
    proximal,
    corrections,
    class_weights,
    kind,
    weights,
    means,
    losses,
):
    """Take the local steps of models start..stop: write their weights, mean gradients and mean losses."""
    layers, most, examples = len(widths) - 1, widths.max(), y.shape[1]
    seen = np.empty((layers + 1, size * most), weights.dtype)
    deltas, labels = np.empty((2, size * most), weights.dtype), np.empty(size, weights.dtype)
    turned = np.empty(most * most, weights.dtype)
    w = np.empty(weights.shape[1], weights.dtype)
    g, begun, mean, correction = np.empty_like(w), np.empty_like(w), np.empty_like(w), np.zeros_like(w)
    pull = weights.dtype.type(proximal)
    for model in range(start, stop):
        _turn(widths, weights[model], w, False)
        if len(corrections):
            _turn(widths, corrections[model], correction, False)
        begun[:] = w
        mean[:] = 0
        rate, total, taken = rates[model], 0.0, 0
        for number in range(steps):
            each = -(-examples // size)
            epoch, first = number // each, number % each * size
            order = orders[which[model], epoch % orders.shape[1]][first : first + size]
            rows = len(order)
            inputs = _part(seen[0], 0, rows, widths[0])
            for i in range(rows):
                labels[i] = y[model, order[i]]
                row, given = inputs[i], x[model, order[i]]
                for k in range(len(row)):
                    row[k] = given[k]
            place = 0
            for layer in range(layers):
                p, q = widths[layer], widths[layer + 1]
                inputs, out = _part(seen[layer], 0, rows, p), _part(seen[layer + 1], 0, rows, q)
                _forward(inputs, _part(w, place, p, q), w[place + p * q : place + p * q + q], out)
                place += p * q + q
                if layer < layers - 1:
                    _relu(seen[layer + 1][: rows * q])
            delta = _part(deltas[layers % 2], 0, rows, widths[layers])
            logits = _part(seen[layers], 0, rows, widths[layers])
            total += _losses(logits, labels, class_weights, kind, delta)
            taken += rows
            for layer in range(layers - 1, -1, -1):
                p, q = widths[layer], widths[layer + 1]
                place -= p * q + q
                inputs = _part(seen[layer], 0, rows, p)
                _weight_gradient(inputs, delta, _part(g, place, p, q), g[place + p * q : place + p * q + q])
                if layer:
                    out = _part(deltas[layer % 2], 0, rows, p)
                    _input_gradient(delta, _part(w, place, p, q), inputs, _part(turned, 0, q, p), out)
                    delta = out
            for j in range(len(w)):
                mean[j] += g[j] / steps
                w[j] -= rate * (g[j] + correction[j] + pull * (w[j] - begun[j]))
        losses[model] = total / taken
        _turn(widths, w, weights[model], True)
        _turn(widths, mean, means[model], True)
