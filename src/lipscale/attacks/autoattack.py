"""AutoAttack (Croce and Hein, 2020) through the extra `attack`."""

import hashlib
import logging
from collections.abc import Callable, MutableMapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from lipscale.errors import UserError

log = logging.getLogger("lipscale")

BATCH = 250  # AutoAttack's own
CLASSES_FOR_DLR = 4  # the targeted DLR loss compares four logits


def autoattack_installed() -> bool:
    """Whether the extra is there."""
    return find_spec("pyautoattack") is not None


def require_autoattack(input_shape: Sequence[int]) -> None:
    """Say early what AutoAttack cannot do without."""
    if not autoattack_installed():
        raise UserError("AutoAttack is an extra: pip install 'lipscale[attack]'")
    if len(input_shape) != 3:
        raise UserError("AutoAttack takes pictures, and this data has rows of numbers: give `attack` pgd")


def autoattack(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    seed: int = 0,
    batch_size: int = BATCH,
    finished: MutableMapping[str, Tensor] | None = None,
    on_batch: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """Points within epsilon that the standard l2 AutoAttack found misclassified; else the input itself.

    It searches images with pixels in [0, 1]. Each of its attacks runs on what the ones before left, as upstream does.

    Args:
        net: the network, in evaluation mode.
        inputs: (N, C, H, W).
        labels: (N,).
        epsilon: the l2 radius.
        seed: fixes everything that is random.
        batch_size: how many samples are attacked at once.
        finished: where finished batches are kept; with one that outlives the process, a killed attack goes on.
        on_batch: called with how many batches are done, and of how many.

    Returns:
        (N, C, H, W), the points.

    Example:
        >>> import lipscale, torch
        >>> net = lipscale.models.convnet(4, 1, 4).eval()
        >>> images = torch.rand(2, 1, 8, 8)
        >>> wrong = (net(images).argmax(1) + 1) % 4  # misclassified already: there is nothing to search for
        >>> torch.equal(lipscale.attacks.autoattack(net, images, wrong, epsilon=0.1), images)
        True
    """
    require_autoattack(inputs.shape[1:])
    finished = {} if finished is None else finished
    with torch.no_grad():
        logits = torch.cat([net(batch) for batch in inputs.split(batch_size)])
    attack = _standard(net, inputs, logits.shape[1], epsilon, seed)
    parts = attack.attacks_to_run
    found = inputs.clone()
    left = (logits.argmax(1) == labels).nonzero().squeeze(1)
    at_most = -(-len(left) // batch_size)  # batches of each part
    for number, part in enumerate(parts):
        attack.attacks_to_run = [part]
        batches = left.split(batch_size) if len(left) else ()
        for k, batch in enumerate(batches):
            # which samples it holds: elsewhere, rounding may have left others over, and their points must not mix
            key = f"{part}-{k}-{hashlib.sha256(repr(batch.tolist()).encode()).hexdigest()[:12]}"
            if key not in finished:
                finished[key] = _run(attack, inputs[batch], labels[batch])
            found[batch] = finished[key].to(inputs)
            on_batch(number * at_most + k + 1, len(parts) * at_most)
        with torch.no_grad():
            left = torch.cat([left[:0], *(b[net(found[b]).argmax(1) == labels[b]] for b in batches)])
        if len(batches) < at_most:  # what is broken needs no further attack
            on_batch((number + 1) * at_most, len(parts) * at_most)
    return found


def _standard(net: nn.Module, inputs: Tensor, classes: int, epsilon: float, seed: int) -> Any:
    from pyautoattack import AutoAttack

    attack = AutoAttack(net, norm="L2", eps=epsilon, version="standard", seed=seed, device=inputs.device)
    # it targets nine classes unless told that there are fewer
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
    if classes < CLASSES_FOR_DLR:
        attack.attacks_to_run = ["apgd-ce", "fab", "square"]
    height, width = inputs.shape[2:]
    if not takes_squares(height, width):
        attack.attacks_to_run.remove("square")
        log.warning(f"AutoAttack's square attack fails on pictures of {height} x {width}: left out")
    return attack


def takes_squares(height: int, width: int) -> bool:
    """Whether upstream's first squares, a fifth of the height, fit; those of one pixel may stick out."""
    side = height // 5
    start = (height - 5 * side) // 2
    return side == 1 or (side > 1 and all(start + length // side * side <= length for length in (height, width)))


def _run(attack: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """The points of one batch. AutoAttack seeds the global generators: they are put back as they were."""
    with torch.random.fork_rng(devices=[inputs.device] if inputs.device.type == "cuda" else []):
        points: Tensor = attack.run_standard_evaluation(inputs, labels, batch_size=len(inputs))[0]
    return points
