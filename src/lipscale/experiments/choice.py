"""Which classifier to choose, by a rule that looks at intervals and not at bare differences."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lipscale.experiments.compare import Answered, Candidate
from lipscale.experiments.intervals import crossed_half_width, half_width
from lipscale.metrics.verdict import percent

RULE = (
    "The rule: the log-loss counts, because it pays for errors and for wrong confidence alike. Whoever is not clearly "
    "above the lowest is level with it: the 95 % interval of the paired difference on the same test samples (and over "
    "the seeds, where there are several) reaches zero. Among those, certified accuracy decides by the same test, and "
    "where that is level, too, the lower log-loss."
)


class Difference(NamedTuple):
    """How much higher a log-loss is than another, with its 95 % interval."""

    value: float
    half: float

    @property
    def is_clear(self) -> bool:
        """Whether it is above zero, whatever the draw of samples and seeds."""
        return self.value - self.half > 0

    def __str__(self) -> str:
        low, high = self.value - self.half, self.value + self.half
        return f"{self.value:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}"


def losses(seed: Answered) -> Tensor:
    """-log p of the true class, sample by sample."""
    return seed.losses


def unproven(seed: Answered) -> Tensor:
    """1 where a sample is wrong, or nothing is proven about it."""
    return torch.ones_like(seed.losses) if seed.proven is None else 1 - seed.proven.double()


def difference(
    one: Candidate, other: Candidate, *, of: Callable[[Answered], Tensor] = losses, comparisons: int = 1
) -> Difference:
    """By how much one is above the other, in log-loss or whatever else is counted sample by sample."""
    pairs = zip(one.seeds, other.seeds, strict=False)
    values = torch.stack([of(a) - of(b) for a, b in pairs])  # (seeds, N)
    several = len(values) > 1
    half = crossed_half_width(values) if several else half_width(values[0].tolist(), comparisons=comparisons)
    return Difference(float(values.mean()), half)


def log_loss(candidate: Candidate) -> float:
    """The mean over samples and seeds."""
    return float(torch.stack([seed.losses for seed in candidate.seeds]).mean())


def choose(candidates: Sequence[Candidate], majority_rate: float) -> tuple[Candidate, list[str]]:
    """The one to choose, and the sentences that say why; `majority_rate` is what a constant answer gets right."""
    best = min(candidates, key=log_loss)
    rivals = len(candidates) - 1
    above = {c.name: difference(c, best, comparisons=max(1, rivals)) for c in candidates if c is not best}
    level = [c for c in candidates if c is best or not above[c.name].is_clear]
    prover = max(level, key=_proven)
    chosen = min((c for c in level if not difference(c, prover, of=unproven).is_clear), key=log_loss)
    said = [f"Choose {chosen.name}: {_why(chosen, best, level, above)}."]
    prover = max(candidates, key=_proven)
    if difference(chosen, prover, of=unproven).is_clear:
        cost = above[prover.name] if chosen is best else difference(prover, chosen)
        said.append(
            f"If you need more proof: {prover.name}, certified accuracy {percent(_proven(prover))}, at a log-loss that "
            f"differs by {cost}."
        )
    lowest = min(seed.scores.intervals.accuracy[0] for seed in chosen.seeds)
    if lowest <= majority_rate:
        said.append(f"Beware: always answering the commonest class is right in {percent(majority_rate)}, too.")
    return chosen, said


def _why(chosen: Candidate, best: Candidate, level: Sequence[Candidate], above: dict[str, Difference]) -> str:
    others = [c.name for c in level if c is not chosen]
    loss = f"its log-loss of {log_loss(chosen):.4f} is"
    if chosen is not best:
        where = f"{loss} not clearly above the lowest ({best.name}, {log_loss(best):.4f}; {above[chosen.name]})"
    elif others:
        where = f"{loss} the lowest, if not clearly below that of {', '.join(others)}"
    else:
        where = f"{loss} clearly the lowest"
    share = _proven(chosen)
    proof = f"it has a certified accuracy of {percent(share)}" if share else "nothing is proven about it"
    return f"{where}, and {proof}{', not clearly below any of those' if share and others else ''}"


def _proven(candidate: Candidate) -> float:
    return candidate.mean(lambda seed: seed.certified) or 0.0
