"""The paper's own numbers, in per cent, to stand beside ours (Tab. 1 and 2, CIFAR-10 unless named otherwise).

Its two tables disagree: for the same L* = 34.66 on all of CIFAR-10 the first has CRA 34.52 and ECE 0.79, the second
CRA 25.78 and ECE 1.27.
"""

from typing import NamedTuple


class Published(NamedTuple):
    """A row: accuracy, ECE, ESCE, accuracy under AutoAttack at 0.5, CRA at 36/255, and L* where the paper names it."""

    accuracy: float
    ece: float
    esce: float
    robust: float
    certified: float | None
    constant: float | None = None


MAIN_TABLE = {
    "Standard": Published(92.95, 4.72, 4.70, 0.28, None),
    "Label Smooth.": Published(93.11, 6.00, -4.81, 0.57, None),
    "Focal Loss": Published(93.08, 1.68, 1.63, 0.13, None),
    "PGD-AT": Published(86.99, 7.67, 7.63, 61.88, None),
    "CAAT": Published(88.83, 8.30, 8.29, 58.08, None),
    "L = 1": Published(63.14, 23.02, -23.02, 47.45, 55.89, 1),
    "L = 4": Published(78.17, 13.46, -13.45, 51.80, 62.12, 4),
    "L = 16": Published(85.49, 3.21, -3.18, 46.14, 47.20, 16),
    "L = 32": Published(86.73, 1.60, 1.48, 41.93, 30.83, 32),
    "L = 128": Published(88.55, 5.51, 5.51, 32.76, 0.77, 128),
    "LiST (xi = 0)": Published(86.59, 0.79, -0.15, 43.29, 34.52, 34.66),
    "LiST (xi = 3)": Published(76.93, 1.17, 0.11, 53.04, 63.06),
}

LOW_DATA = {
    50_000: Published(86.89, 1.27, 1.25, 41.51, 25.78, 34.66),
    25_000: Published(83.70, 1.31, 1.20, 42.42, 30.11, 27.10),
    10_000: Published(77.36, 1.52, 0.69, 41.12, 37.58, 15.71),
    5_000: Published(71.74, 2.62, 2.59, 39.60, 37.42, 12.88),
    1_000: Published(52.53, 2.16, 0.99, 33.45, 30.06, 5.20),
}

PHASES = {
    ("CIFAR-10", "I"): Published(86.87, 1.34, 1.18, 41.49, 25.44, 34.66),
    ("CIFAR-10", "II"): Published(86.89, 1.27, 1.25, 41.51, 25.78, 34.66),
    ("CIFAR-100", "I"): Published(57.04, 1.52, -0.82, 21.20, 10.07, 24.96),
    ("CIFAR-100", "II"): Published(57.33, 1.61, -0.80, 21.30, 10.39, 24.96),
    ("Tiny-ImageNet", "I"): Published(42.24, 2.42, -2.19, 21.17, 12.34, 14.72),
    ("Tiny-ImageNet", "II"): Published(42.76, 2.11, -1.88, 21.50, 12.92, 14.72),
}
