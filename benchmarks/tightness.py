"""How loose is the bound? Its ratio to the true norm (dense SVD) for random convolutions, padding by padding.

python -m benchmarks.tightness
"""

import itertools

import torch
from torch import nn

from lipscale import lipschitz_bound

SHAPE = (3, 9, 9)
GEOMETRIES = {
    "3x3": {"kernel_size": 3, "padding": 1},
    "3x3, stride 2": {"kernel_size": 3, "padding": 1, "stride": 2},
    "3x3, dilation 2": {"kernel_size": 3, "padding": 2, "dilation": 2},
    "5x5": {"kernel_size": 5, "padding": 2},
}


def true_norm(conv):
    """The largest singular value of the convolution as a matrix."""
    size = torch.Size(SHAPE).numel()
    with torch.no_grad():
        columns = conv(torch.eye(size, dtype=torch.float64).view(size, *SHAPE)).flatten(1)
    return float(torch.linalg.matrix_norm(columns, ord=2))


def main():
    print(f"| convolution | padding | bound / norm at {SHAPE} | bound / norm for every size |")
    print("|---|---|---|---|")
    for (name, geometry), mode in itertools.product(GEOMETRIES.items(), ("zeros", "circular", "reflect", "replicate")):
        shaped, free = [], []
        for seed in range(5):
            torch.manual_seed(seed)
            conv = nn.Conv2d(3, 6, **geometry, padding_mode=mode, bias=False).double().eval()
            norm = true_norm(conv)
            shaped.append(lipschitz_bound(conv, SHAPE) / norm)
            free.append(lipschitz_bound(conv) / norm)
        assert min(shaped + free) >= 1, "the bound lies below the norm"
        print(f"| {name} | {mode} | {min(shaped):.3f} to {max(shaped):.3f} | {min(free):.3f} to {max(free):.3f} |")


if __name__ == "__main__":
    main()
