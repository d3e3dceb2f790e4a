"""The 8x8 handwritten digits that ship inside scikit-learn: the embedded default."""

from pathlib import Path

import torch

from lipscale.data.dataset import Dataset, Samples, stratified


def read(folder: Path | None) -> Dataset:
    """1,797 images with 17 grey levels, and a fixed, stratified fifth of them as the test part."""
    from sklearn.datasets import load_digits  # slow to import

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16  # (N, 1, 8, 8) in [0, 1]
    samples = Samples(images, torch.from_numpy(bunch.target).long())
    test, train = stratified(samples.labels, 360, seed=0, stream="digits-test")
    return Dataset("digits", samples.take(train), samples.take(test), tuple("0123456789"))
