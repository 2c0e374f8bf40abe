"""What travels is what the protocol needs: w down; C_e, the gradient and, for inter-geo, the product up."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
import torch

from fedilc import algorithms
from fedilc.algorithms import find_algorithm
from fedilc.config import Experiment
from fedilc.runtimes.rest.task_queue import TaskQueue
from rest import remote, trained

ROUNDS, SILOS = 3, ("a", "b", "c")


def color_mnist(algorithm: str) -> Experiment:
    """The network of Color-MNIST, with 305 thousand parameters."""
    return remote(SILOS, 392, hidden=[390, 390], algorithm=algorithm, rounds=ROUNDS, environment_size=32)


class Meter:
    """A wire in the way to a coordinator that counts all bytes, those of HTTP as well."""

    def __init__(self) -> None:
        self.up: list[int] = []
        self.down: list[int] = []

    @contextlib.contextmanager
    def __call__(self, client: httpx.Client) -> Iterator[httpx.Client]:
        coordinator = (client.base_url.host, client.base_url.port)
        with socket.create_server(("127.0.0.1", 0)) as here:
            threading.Thread(target=self._connect, args=(here, coordinator), daemon=True).start()
            url = f"http://127.0.0.1:{here.getsockname()[1]}"
            with httpx.Client(base_url=url, timeout=30, trust_env=False) as metered:
                yield metered
            here.shutdown(socket.SHUT_RDWR)

    def _connect(self, here: socket.socket, coordinator: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = here.accept()
                called = socket.create_connection(coordinator)
                for ends in ((caller, called, self.up), (called, caller, self.down)):
                    threading.Thread(target=_carry, args=ends, daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket, counted: list[int]) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(1 << 18):
            counted.append(len(part))
            sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)


def needed(queue: TaskQueue, algorithm: str, size: int) -> tuple[int, int]:
    """Bytes up and down of the whole run; weights and vectors take `size` bytes a number, statistics four."""
    choices = find_algorithm(algorithm)[1]
    weights = size * sum(like.numel() for like in queue.manifest.like.values())
    variance = 4 * math.prod(queue.manifest.statistic or [0])
    vectors = 2 if choices.penalty is not None and not choices.adds_up_in_silo else 1
    up = ROUNDS * (variance + vectors * weights)
    down = (ROUNDS + 1) * weights + ROUNDS * variance  # the weights of each round, and the last to evaluate
    return len(SILOS) * up, len(SILOS) * down


@pytest.mark.parametrize("algorithm", algorithms.PAPER)
def test_a_run_takes_the_bytes_that_the_protocol_needs_within_five_percent(algorithm: str) -> None:
    meter = Meter()
    _, queue = trained(color_mnist(algorithm), through=meter)
    assert_within_five_percent(meter, queue, needed(queue, algorithm, 4))


def test_halves_take_half_of_them_and_train_nearly_the_same() -> None:
    meter, algorithm = Meter(), "fishr-inter-geo"
    exact, _ = trained(color_mnist(algorithm))
    halved, queue = trained(color_mnist(algorithm), "float16", through=meter)
    assert_within_five_percent(meter, queue, needed(queue, algorithm, 2))
    pairs = list(zip(exact.model.parameters(), halved.model.parameters(), strict=True))
    assert not all(torch.equal(one, other) for one, other in pairs)
    for one, other in pairs:  # each weight went 0.01 a round; a vanishing gradient may turn a few around
        assert (one - other).abs().mean() < 1e-4


def assert_within_five_percent(meter: Meter, queue: TaskQueue, least: tuple[int, int]) -> None:
    told: list[Callable[..., int]] = [lambda silo: silo.bytes_received, lambda silo: silo.bytes_sent]
    for counted, count, need in zip((meter.up, meter.down), told, least, strict=True):
        reported = sum(count(silo) for silo in queue.silos.values())
        assert need <= reported <= sum(counted) <= 1.05 * need
