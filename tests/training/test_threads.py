"""Small work gets one thread, large work all of them, and everybody else's threads come back."""

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import lipscale
from lipscale.training.defaults import is_small
from lipscale.training.hardware import one_thread


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with threadpool_limits(2):
        yield
    torch.set_num_threads(before)


def test_one_thread_for_torch_and_for_scikit_learn_and_the_old_ones_afterwards():
    import sklearn.ensemble  # noqa: F401, it brings an OpenMP of its own

    with pytest.raises(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        assert {library["num_threads"] for library in threadpool_info()} == {1}
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == 2
    assert max(library["num_threads"] for library in threadpool_info()) == 2
    with one_thread(when=False):
        assert torch.get_num_threads() == 2


def test_small_are_dense_networks_on_few_rows():
    mlp = lipscale.models.mlp(2, 10, 64)
    assert is_small(mlp, 128)
    assert not is_small(mlp, 1_000_000)
    assert not is_small(lipscale.models.patchnet(2, 1, width=4, image_size=8), 16)
    assert not is_small(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3)), 1)


def test_a_small_training_has_one_thread_and_a_convolutional_one_all():
    seen: dict[str, list[int]] = {"rows": [], "pictures": []}
    rows, pictures, labels = torch.rand(40, 4), torch.rand(40, 1, 8, 8), torch.arange(40) % 2
    for kind, net, inputs in (
        ("rows", lipscale.models.mlp(2, 4, 8), rows),
        ("pictures", lipscale.models.patchnet(2, 1, width=4, image_size=8), pictures),
    ):
        data = torch.utils.data.TensorDataset(inputs, labels)
        watch = seen[kind]
        lipscale.fit(
            net, data, epochs=1, progress=False, on_epoch=lambda _, watch=watch: watch.append(torch.get_num_threads())
        )
    assert seen == {"rows": [1], "pictures": [2]}
    assert torch.get_num_threads() == 2
