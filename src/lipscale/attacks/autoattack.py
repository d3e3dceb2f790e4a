"""AutoAttack (Croce and Hein, 2020) through the extra `attack`."""

from importlib.util import find_spec

import torch
from torch import Tensor, nn

from lipscale.errors import UserError


def autoattack_installed() -> bool:
    """Whether the extra is there."""
    return find_spec("pyautoattack") is not None


def autoattack(net: nn.Module, inputs: Tensor, labels: Tensor, *, epsilon: float, seed: int = 0) -> Tensor:
    """Which samples the standard l2 AutoAttack leaves correctly classified within epsilon, (N,) of bool.

    It searches images with pixels in [0, 1] only.
    """
    if not autoattack_installed():
        raise UserError("AutoAttack is an extra: pip install 'lipscale[attack]'")
    from pyautoattack import AutoAttack

    with torch.no_grad():
        classes = net(inputs[:1]).shape[1]
    attack = AutoAttack(net, norm="L2", eps=epsilon, version="standard", seed=seed, device=inputs.device)
    # it targets nine classes unless told that there are fewer
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
    if classes < 4:  # the targeted DLR loss needs four
        attack.attacks_to_run = ["apgd-ce", "fab", "square"]
    adversarial, _ = attack.run_standard_evaluation(inputs, labels, batch_size=len(inputs))
    with torch.no_grad():
        return net(adversarial).argmax(1) == labels
