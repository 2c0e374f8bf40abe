"""A job that counts in a file: what the engine does with it can be read there."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fedilc.errors import DataError
from fedilc.studies.worker_pool import Job


@dataclass(frozen=True, eq=False)
class Counting(Job):
    """Write a line per unit, after some seconds each; `fault` happens after the first one."""

    pause: float = 0.0
    fault: str = ""

    @classmethod
    def of(cls, folder: Path, name: str, cost: int = 1, pause: float = 0.0, fault: str = "") -> Counting:
        kind = name.rstrip("0123456789")
        return cls(name, kind, folder, cost, pause, fault)

    @property
    def file(self) -> Path:
        return self.folder / self.label

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def finished(self) -> bool:
        return self.done() == self.cost

    def done(self) -> int:
        return len(self.lines())

    def perform(self, shared: object) -> None:
        for _ in range(self.done(), self.cost):
            time.sleep(self.pause)
            facts = {"process": os.getpid(), "threads": torch.get_num_threads(), "shared": shared}
            with self.file.open("a") as file:
                file.write(json.dumps(facts) + "\n")
            if self.fault == "error":
                raise DataError("the silo is empty; fill it")
            if self.fault == "bug":
                raise ZeroDivisionError
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
