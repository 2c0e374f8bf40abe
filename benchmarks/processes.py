"""Processes that benchmarks start and measure: the command, ranks of torchrun, and their memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MIB = 1 << 20
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def started(module: str, *words: object, output: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Start `python -m module words` on one thread; it is killed when the context ends."""
    command = [sys.executable, "-m", module, *map(str, words)]
    environment = os.environ | ONE_THREAD
    with subprocess.Popen(
        command, stdout=output, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(process: subprocess.Popen[str], seconds: float = 60) -> None:
    """Wait until a process has ended; raise if it failed or takes too long."""
    process.communicate(timeout=seconds)
    if process.returncode:
        raise RuntimeError(f"{process.args} ended with {process.returncode}")


def torchrun(ranks: int, module: str, *words: object, limit: float | None = None) -> None:
    """Run a module on ranks of torchrun, one thread each, until all have ended, or the limit in seconds."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", module, *map(str, words)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | ONE_THREAD,
    )
    try:
        _, said = process.communicate(timeout=limit)
    except BaseException:
        process.terminate()  # torchrun then ends its ranks, which have sessions of their own
        process.wait()
        raise
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}: {said.decode()[-2000:]}")


def url_of(coordinator: subprocess.Popen[str]) -> str:
    """Return the address that a coordinator prints for silos to join."""
    assert coordinator.stdout is not None
    for line in coordinator.stdout:
        words = line.split()
        if words[:3] == ["silos", "join", "at"]:
            return words[3].rstrip(",;")
    raise RuntimeError("the coordinator did not start")


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds; raise, with what was waited for, if that takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)


def memory(key: str = "VmRSS", pid: int | str = "self") -> int:
    """Return the bytes that a process holds, or held at most (VmHWM); 0 if it has just ended.

    Unlike those of getrusage, these numbers are not inherited from the parent.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key):
                return 1024 * int(line.split()[1])
    return 0
