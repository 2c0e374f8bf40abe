"""A run over silos elsewhere, put together alike for every runtime that reaches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedilc.callbacks import Callback
from fedilc.config import Options
from fedilc.federation import RunFolder, Runtime, Task
from fedilc.result import Result
from fedilc.runtimes.remote.manifest import Manifest, Wire, make_manifest
from fedilc.runtimes.remote.setting_up import Plan
from fedilc.training import Training


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
        options = self.options
        return options.min_silos or options.silos_per_round or len(self.plan.outline.silos)

    def training(self, reach: Callable[[Manifest], Runtime]) -> Training:
        """The run, over the runtime that `reach` makes once the manifest is known."""
        plan = self.plan

        def connect(task: Task, model: nn.Module, outputs: int) -> Runtime:
            spec = plan.spec.model_copy(update={"outputs": outputs})
            silos = plan.outline.silos
            manifest = make_manifest(
                self.name, self.algorithm, task, self.options, silos, model, spec, self.wire, plan.columns
            )
            return reach(manifest)

        return Training(plan.outline, plan.model, self.algorithm, self.options, connect)

    def run(
        self, training: Training, runtime: str, out: Path | None, callbacks: Sequence[Callback] = ()
    ) -> Result:
        """Train; continues the run that `out` holds, if it is this one."""
        facts = {"experiment": self.name, "wire": self.wire, "runtime": runtime}
        resume = out is not None and RunFolder(out).settings_file.exists()
        return training.run(list(callbacks), out, resume, facts)
