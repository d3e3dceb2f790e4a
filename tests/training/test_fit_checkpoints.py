"""`fit` with a checkpoint: a stop after any batch loses nothing; and what it shows meanwhile."""

import pytest
import torch
from fit_makers import (
    DATA,
    blobs,
    network,
    quick,
    timeless,
)
from torch.utils.data import (
    TensorDataset,
)

from lipscale import fit, models
from lipscale.errors import StoppedError, UserError


class Interrupted(Exception):
    pass


CASES = {
    "mlp, adamw": {"batch_size": 24},
    "convnet, muon": {"batch_size": 24, "precision": "bfloat16"},
    "convnet, schedulefree": {"batch_size": 24, "optimizer": "schedulefree", "feedback": "paper"},
    "mlp, restart": {"batch_size": 24, "optimizer": "schedulefree", "phase2_start": "restart"},
}


@pytest.fixture(scope="module", params=CASES)
def case(request, digits):
    """A fit of four epochs of five batches, and what it ends with where nothing stops it."""
    kind = request.param.partition(",")[0]
    data = DATA if kind == "mlp" else TensorDataset(digits.train.inputs[:120], digits.train.labels[:120])

    def run(**more):
        return quick(network(kind), data, phase2_epochs=2, **CASES[request.param], **more)

    run.whole = run()
    return run


class TestCheckpoints:
    def same(self, one, other):
        assert timeless(one.history) == timeless(other.history)
        assert (one.lipschitz, one.converged, one.advice) == (other.lipschitz, other.converged, other.advice)
        theirs = other.net.state_dict()
        for name, tensor in one.net.state_dict().items():
            assert torch.equal(tensor, theirs[name]), name

    # five batches an epoch of either phase: in the first epoch, at its end, in the second, in both of Phase II
    @pytest.mark.parametrize("batch", [1, 5, 7, 10, 12, 16, 20])
    def test_a_stop_after_any_batch_loses_nothing(self, case, tmp_path, batch):
        asked = iter(range(1, 10**6))
        path = tmp_path / "fit.safetensors"
        with pytest.raises(
            StoppedError, match=f"stopped after {(batch - 1) // 5 % 2} whole epochs?|2 whole.*all is saved"
        ):
            case(checkpoint=path, should_stop=lambda: next(asked) == batch)
        self.same(case(checkpoint=path), case.whole)

    def test_stops_may_come_after_every_batch(self, case, tmp_path):
        path, stops = tmp_path / "fit.safetensors", 0
        while stops < 100:
            try:
                result = case(checkpoint=path, should_stop=lambda: True)
                break
            except StoppedError:
                stops += 1
        assert stops == 20
        self.same(result, case.whole)

    @pytest.mark.parametrize("epoch", [1, 2, 3, 4])
    def test_an_exception_after_an_epoch_loses_nothing(self, case, tmp_path, epoch):
        path, count = str(tmp_path / "fit.safetensors"), iter(range(1, 10))

        def fail(_):
            if next(count) == epoch:
                raise Interrupted

        with pytest.raises(Interrupted):
            case(checkpoint=path, on_epoch=fail)
        left = []
        self.same(case(checkpoint=path, on_epoch=left.append), case.whole)
        assert len(left) == 4 - epoch  # the epoch itself is not done again

    def test_a_finished_one_is_only_loaded(self, tmp_path):
        path, seen = tmp_path / "fit.safetensors", []
        first = quick(network(), DATA, checkpoint=path)
        again = quick(network(seed=5), DATA, checkpoint=path, on_epoch=seen.append)
        assert not seen
        assert again.history == first.history
        self.same(first, again)
        assert not any(module.training for module in again.net.modules())

    def test_another_training_is_refused(self, tmp_path):
        path = tmp_path / "fit.safetensors"
        quick(network(), DATA, checkpoint=path)
        for change in ({"offset": 1.0}, {"seed": 1}, {"batch_size": 7}, {"calibration_fraction": 0.5}):
            with pytest.raises(UserError, match="fit.safetensors is no checkpoint of a run with these settings"):
                quick(network(), DATA, checkpoint=path, **change)
        with pytest.raises(UserError, match="no checkpoint of a run with these settings"):
            quick(network(), TensorDataset(*blobs((60, 40, 30))), checkpoint=path)
        with pytest.raises(UserError, match="is no checkpoint of a run with these settings"):
            quick(models.mlp(3, 4, 10), DATA, checkpoint=path)
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(UserError, match="fit.safetensors is truncated"):
            quick(network(), DATA, checkpoint=path)

    def test_without_a_checkpoint_a_stop_says_that_nothing_is_saved(self):
        with pytest.raises(StoppedError, match="^stopped after 0 whole epochs$"):
            quick(network(), DATA, should_stop=lambda: True)


class TestProgress:
    def test_it_is_shown_on_stderr(self, capsys):
        quick(network(), DATA, progress=True)
        out, err = capsys.readouterr()
        assert out == ""
        lines = [line for line in err.splitlines() if line.startswith("phase")]
        assert len(lines) == 3
        assert lines[0].startswith("phase 1 epoch 1 L ")
        assert lines[2].startswith("phase 2 epoch 1 L ")
        for word in ("T* ", "loss ", "accuracy ", "left"):
            assert word in lines[0]
        assert "calibration samples know T*" in " ".join(err.split())  # a warning among them

    def test_it_is_the_default(self, capsys):
        fit(network(), DATA, epochs=1)
        assert "phase 1 epoch 1 L" in capsys.readouterr().err

    def test_nothing_is_shown_without(self, capsys):
        quick(network(), DATA, progress=False)
        out, err = capsys.readouterr()
        assert out == ""
        assert "phase" not in err
