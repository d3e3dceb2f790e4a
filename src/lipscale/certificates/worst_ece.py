"""The largest binned ECE that changes of all inputs can reach: exact over the ranges of confidences, in milliseconds.

ECE = 1/N sum_m |sum_{i in bin m} (c_i - a_i)|, with a_i = 1 for a right answer. An absolute value is the larger of two
signs, and both maxima, over signs s of the bins and over where the samples go, can change places:

    max ECE = 1/N max_s sum_i max over what i can become of s_m (c - a), m the bin of c.

For given signs every sample chooses by itself. A wrong answer (a = 0) wants the highest bin with a plus, and there the
largest c; a right one the lowest bin with a minus, and there the least c. So these two bins are all that matters of the
signs, and samples that reach the same bins are added up before the signs are gone through, all 2^bins of them.
"""

import torch
from torch import Tensor

from lipscale.certificates.reach import Reach
from lipscale.errors import UserError
from lipscale.metrics.binned import bin_edges

MOST_BINS = 16  # 65,536 patterns of signs
ROUNDING = 1e-12


def worst_ece(reach: Reach, bins: int) -> float:
    """The supremum of the ECE over all that the samples can become, bins (m / M, (m + 1) / M] as those of the ECE."""
    if not 1 <= bins <= MOST_BINS:
        raise UserError(f"expected 1 to {MOST_BINS} bins for a certified ECE, got {bins}")
    edges = bin_edges(bins).to(reach.low)
    confidences = (reach.low, reach.wrong_high, reach.right_high)
    low, wrong, right = (torch.bucketize(c.contiguous(), edges[1:-1]) for c in confidences)
    empty = int(low.min())  # bins that no sample can reach need no sign
    low, wrong, right, edges, bins = low - empty, wrong - empty, right - empty, edges[empty:], bins - empty
    # what cannot be has no bins of its own: fewer groups
    wrong, right = torch.where(reach.can_be_wrong, wrong, low), torch.where(reach.can_be_right, right, low)
    bits = reach.can_be_wrong.long() + 2 * reach.can_be_right.long()
    groups, group = torch.stack((low, wrong, right, bits), 1).unique(dim=0, return_inverse=True)
    sums = _sums(reach, edges, group, len(groups))
    highest_plus, lowest_minus = _extreme_bins(bins, reach.low.device)
    total = torch.zeros(2**bins, dtype=torch.float64, device=reach.low.device)
    for table, (a, b, d, _) in zip(sums, groups.tolist(), strict=True):
        plus = torch.where(highest_plus[:, b] >= a, highest_plus[:, b], bins)
        minus = torch.where(lowest_minus[:, a] <= d, lowest_minus[:, a], bins)
        total += table[plus, minus]
    return min(1.0, float(total.max()) / len(reach.low) + ROUNDING)


def _sums(reach: Reach, edges: Tensor, group: Tensor, groups: int) -> Tensor:
    """What each group's samples are worth, (G, M + 1, M + 1), by the bin for a wrong and the bin for a right answer.

    M stands for none: then a wrong answer is worth -c, best at its least c, and a right one c - 1, at its largest.
    """
    low, none = reach.low.unsqueeze(1), torch.full_like(reach.low, -torch.inf).unsqueeze(1)
    wrong = torch.cat((torch.minimum(reach.wrong_high.unsqueeze(1), edges[1:]), -low), 1)  # (N, M + 1)
    right = torch.cat((1 - torch.maximum(low, edges[:-1]), reach.right_high.unsqueeze(1) - 1), 1)
    wrong = torch.where(reach.can_be_wrong.unsqueeze(1), wrong, none)
    right = torch.where(reach.can_be_right.unsqueeze(1), right, none)
    tables = [
        torch.zeros(groups, len(edges), dtype=torch.float64, device=low.device).index_add_(
            0, group, torch.maximum(column.unsqueeze(1), right)
        )
        for column in wrong.unbind(1)
    ]
    return torch.stack(tables, 1)


def _extreme_bins(bins: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each pattern of signs the highest plus up to each bin (-1: none), the lowest minus from it on (M: none)."""
    place = torch.arange(bins, device=device)
    plus = (torch.arange(2**bins, device=device).unsqueeze(1) >> place) & 1 == 1  # (2^M, M)
    highest = torch.where(plus, place, -1).cummax(1).values
    lowest = torch.where(plus, bins, place).flip(1).cummin(1).values.flip(1)
    return highest, lowest
