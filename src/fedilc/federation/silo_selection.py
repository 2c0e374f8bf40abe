"""Select the silos of a round, and repeat a round without silos that are lost or set aside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedilc.config import Options
from fedilc.errors import SilosLostError, silos_with_reasons
from fedilc.federation.outliers import NormBound
from fedilc.federation.runtime import Runtime
from fedilc.seeds import numpy_generator


class RepeatRoundError(Exception):
    """Silos without which the round is repeated: they did not reply, or are set aside for a reason."""

    def __init__(self, silos: Iterable[str], reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(", ".join(silos))
        self.silos = tuple(silos)
        self.reasons = dict(reasons or {})


@dataclass(frozen=True)
class SiloSelection:
    """The choice of silos per round.

    If a silo is lost in any step, the whole round is repeated without it, because a penalty gradient without
    one silo's term would be wrong. The same happens if a reply is set aside as an outlier.

    Args:
        runtime: says which silos are present.
        bound: says which silos are left out of the rest of the run.
        options: `min_silos` says how many silos a round needs at least, `silos_per_round` how many are drawn
            at random, and `seed` which.
    """

    runtime: Runtime
    bound: NormBound
    options: Options

    def draw(self, number: int, aside: Mapping[str, str]) -> tuple[str, ...]:
        """Return the silos to ask in a round: all that are present, or `silos_per_round` of them.

        Silos that are left out of the run, or set `aside` in this round, are not among them. If silos are
        drawn, others take their places, so that without `min_silos` one silo is enough.
        """
        drawn = self.options.silos_per_round
        total = len(self.runtime.silos)
        excluded = self.bound.left_out | dict(aside)
        needed = self.options.quorum(total) if drawn is None else self.options.min_silos or 1
        if self.bound.left_out:
            self.runtime.set_aside(self.bound.left_out)
        present = tuple(silo for silo in self.runtime.present() if silo not in excluded)
        if excluded and len(present) < needed:
            raise SilosLostError(
                f"round {number} sets {silos_with_reasons(excluded)} aside, and {len(present)} of {total} "
                f"silos are left, fewer than min_silos={needed}; correct the problem there and start "
                "again, or start with a lower min_silos or a larger outlier_factor"
            )
        if drawn is None or drawn >= len(present):
            return present
        random = numpy_generator(self.options.seed, number, "silos")
        chosen = sorted(random.choice(len(present), drawn, replace=False))
        return tuple(present[place] for place in chosen)

    def without(
        self, lost: RepeatRoundError, asked: tuple[str, ...], number: int, aside: dict[str, str]
    ) -> tuple[str, ...]:
        """Return the silos with which to repeat a round after some were lost; raise if too few are left.

        Those whose replies are outliers are added to `aside`; with `silos_per_round`, silos are then drawn
        again from the others.
        """
        reasons = self.bound.strike(lost.reasons)
        aside |= reasons
        if reasons:
            self.runtime.set_aside(reasons, number)
            if self.options.silos_per_round is not None:
                return self.draw(number, aside)
        total = len(self.runtime.silos)
        left = tuple(silo for silo in asked if silo not in lost.silos)
        needed = self.options.quorum(total)
        if len(left) >= needed and left:
            return left
        too_few = f"{len(left)} of {total} silos are left, fewer than min_silos={needed}"
        if reasons:
            raise SilosLostError(
                f"round {number} sets {silos_with_reasons(reasons)} aside, and {too_few}; correct the "
                "problem there and resume, or start again with a lower min_silos or a larger outlier_factor"
            )
        known = self.runtime.reasons(lost.silos)
        names = [f"{silo} ({known[silo]})" if silo in known else silo for silo in lost.silos]
        raise SilosLostError(
            f"round {number} lost {', '.join(names)} and {too_few}; bring them back or lower min_silos"
        )
