"""Class by class in sentences: what accuracy is worth beside the commonest class, and what to do for a rare one."""

from lipscale.metrics.classes import ClassScores
from lipscale.metrics.intervals import Interval

NEAR_CHANCE = 0.1  # of the way from guessing to perfection
RANKS = 0.6  # an AUC from which on probabilities tell classes apart, whatever the answers do
MISSED = 0.5  # a recall
FEW = 5  # samples of a class, fewer of which tell nothing


def beside_the_majority(scores: ClassScores) -> str:
    """What always answering the commonest class would have got right, or nothing where it was not measured."""
    if scores.majority_rate is None:
        return ""
    return f"always answering {scores.commonest!r} would be right for {100 * scores.majority_rate:.1f} %"


def hollow(scores: ClassScores, interval: Interval) -> str:
    """Why accuracy deceives, where the answer hardly depends on the input; else nothing. `interval` is accuracy's."""
    rate, occurring = scores.majority_rate, sum(count > 0 for count in scores.counts)
    if rate is None or scores.balanced_accuracy is None or occurring < 2:
        return ""
    if scores.always_answers is not None:
        return f"it always answers {scores.always_answers!r}"
    guessing = 1 / occurring
    better = (scores.balanced_accuracy - guessing) / (1 - guessing)
    if interval[0] <= rate and better < NEAR_CHANCE:
        return f"it is hardly better than always answering {scores.commonest!r}"
    return ""


def empty_praise(scores: ClassScores, accuracy: float, interval: Interval) -> str:
    """A warning to stand where praise of the accuracy would, or nothing."""
    reason = hollow(scores, interval)
    if not reason:
        return ""
    occurring = sum(count > 0 for count in scores.counts)
    said = (
        f"{reason[0].upper()}{reason[1:]}: {100 * accuracy:.1f} % of the test samples are right, and "
        f"{100 * (scores.majority_rate or 0):.1f} % are {scores.commonest!r}. The mean recall of the classes is "
        f"{100 * (scores.balanced_accuracy or 0):.1f} %, where guessing has {100 / occurring:.1f} %."
    )
    if scores.auc is None or scores.auc < RANKS:
        return f"{said} It has learned next to nothing that tells the classes apart."
    return f"{said} Its probabilities do tell the classes apart (AUC {scores.auc:.2f}), its answers do not."


def class_advice(scores: ClassScores, interval: Interval, *, weighted: bool = False) -> str | None:
    """What would find rare classes that are missed; `weighted` says that the loss had class weights already."""
    counts, reason = scores.counts, hollow(scores, interval)
    even = sum(counts) / max(1, sum(count > 0 for count in counts))  # samples, if all classes had as many
    missed = sorted(
        (share, c)
        for c, share in enumerate(scores.recall)
        if share is not None and share < MISSED and (reason or counts[c] >= FEW) and counts[c] < even / 2
    )
    if not missed:
        return f"{reason}: more `epochs` or more data may help" if reason else None
    found = ", ".join(f"{100 * share:.0f} % of {scores.classes[c]!r}" for share, c in missed[:3])
    more = f" and {len(missed) - 3} more rare classes" if len(missed) > 3 else ""
    ways = [] if weighted else ["in training, `class_weights` balanced makes rare classes count as much as others"]
    if len(scores.classes) == 2:
        rare = missed[0][1]
        # where probabilities are right, the mean recall is largest at the class's own share; weights have moved them
        lower = 0.25 if weighted else counts[rare] / sum(counts)
        ways.append(f"at prediction, `threshold` {lower:.2g} answers it from that probability on")
    told = f"of rare classes it finds only {found}{more}" + (f": {', or '.join(ways)}" if ways else "")
    return f"{reason}; {told}" if reason else told
