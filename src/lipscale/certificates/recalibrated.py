"""What becomes of certified radii where a post-hoc calibrator maps the logits.

Temperature scaling divides margins and constants by the same T: radii stay (Eq. 8). Affine maps u = W x(z) + b have
radii of their own. The gradient of u_k - u_j in z is a - s p, where a = W_k - W_j, s is the sum of a, and p is the
gradient of what is taken off the logits: 1 / C for logits around their mean (vector, matrix), softmax(z) for
log-probabilities (dirichlet). Its norm is convex in p, so no p of the simplex gives more than a corner e_m, and
u_k - u_j has

    K_kj = B ||a - s / C||        or        K_kj = B max_m ||a - s e_m||

as its constant behind a B-Lipschitz network. Histograms, isotonic regression and BBQ are steps: nothing is certified.
"""

import math

import torch
from torch import Tensor

from lipscale.calibration.posthoc import Calibrator, DirichletCalibration
from lipscale.calibration.posthoc.affine import AffineCalibrator
from lipscale.certificates.affine import Affine
from lipscale.certificates.certificate import ROUNDING, Certificate

UNIT = torch.finfo(torch.float64).eps


def recalibrated_radius(certificate: Certificate, calibrator: Calibrator, at_zero: float) -> Tensor | None:
    """The certified radii of the calibrated answers, (N,); none where the map has no constant.

    Args:
        certificate: Of the network's own answers.
        calibrator: Fitted.
        at_zero: The norm of the network's logits at x = 0, which bounds those at x by B ||x|| more.

    Returns:
        (N,) in float64, in the units of the input.
    """
    if calibrator.keeps_radii:
        return certificate.radius()
    if not isinstance(calibrator, AffineCalibrator):
        return None
    weight, bias, classes = calibrator.scale * calibrator.weight.double(), calibrator.bias, certificate.logits.shape[1]
    on_log_p = isinstance(calibrator, DirichletCalibration)
    gains = torch.stack([_gains(row - weight, on_log_p=on_log_p) for row in weight])  # (C, C)
    # a product of 2 C or so terms, and what surrounds it: of the features, and of the weights that are scaled here
    unit = 8 * (classes + 8) * UNIT
    norm = Affine(certificate.bound, at_zero)
    features = (
        norm * (2 * math.sqrt(classes)) + Affine(0.0, math.sqrt(classes) * math.log(classes)) if on_log_p else norm
    )
    computed = features * (unit * float(weight.norm())) + Affine(0.0, unit * float(bias.norm()))
    # sqrt(2) of the error is what a difference of two logits is off by: max gain of the network's own, and this map's
    error = certificate.error * (float(gains.max()) / math.sqrt(2)) + computed
    bound = certificate.bound * float(gains.max())
    pairwise, logits = certificate.bound * gains / ROUNDING, calibrator.transform(certificate.logits)
    return Certificate(bound, pairwise, logits, certificate.norms, error).radius()


def _gains(difference: Tensor, *, on_log_p: bool) -> Tensor:
    """The largest ||a - s p|| for each row a of differences of weights, (C, C) -> (C,)."""
    total = difference.sum(1, keepdim=True)
    if not on_log_p:
        return (difference - total / difference.shape[1]).norm(dim=1)
    squared = difference.square().sum(1, keepdim=True) + total.square() - 2 * total * difference
    return squared.amax(1).clamp(min=0).sqrt() * (1 + 1e-9)  # a difference of squares cancels
