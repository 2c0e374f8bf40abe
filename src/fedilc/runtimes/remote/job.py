"""A run over silos elsewhere, put together alike for every runtime that reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedilc.config import Options
from fedilc.federation import RunFolder, Runtime
from fedilc.runtimes.remote.builders import Plan
from fedilc.runtimes.remote.manifest import Manifest, Wire, make_manifest
from fedilc.training.callbacks import Callback
from fedilc.training.loop import Training
from fedilc.training.result import Result
from fedilc.training.specification import Specification


@dataclass(frozen=True)
class Job:
    """What is to be trained, and how it travels."""

    name: str
    algorithm: str
    options: Options
    plan: Plan
    wire: Wire = "exact"

    @property
    def needed(self) -> int:
        """How many silos a round needs at least."""
        return self.options.quorum(len(self.plan.outline.silos))

    @cached_property
    def specification(self) -> Specification:
        """The run without its runtime."""
        return Specification.of(self.plan.outline, self.plan.model, self.algorithm, self.options)

    @cached_property
    def manifest(self) -> Manifest:
        """What silos are told of the run."""
        network = self.plan.spec.model_copy(update={"outputs": self.specification.outputs})
        return make_manifest(self.name, self.specification, network, self.wire, self.plan.columns)

    def training(self, runtime: Runtime) -> Training:
        """Return the run over a runtime; raise if it cannot work."""
        return Training(self.specification, runtime)


def coordinate(
    job: Job, training: Training, name: str, out: Path | None, callbacks: Sequence[Callback] = ()
) -> Result:
    """Train over the runtime called `name`; go on with the run in `out`, if it is this one."""
    facts = {"experiment": job.name, "wire": job.wire, "runtime": name}
    resume = out is not None and RunFolder(out).settings_file.exists()
    return training.run(list(callbacks), out, resume, facts)
