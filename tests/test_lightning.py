"""The Lightning callback: the same L as a plain loop, before validation looks, through checkpoints and processes."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import lipscale
from lipscale import UserError, models
from lipscale.data import prepare, read_dataset
from lipscale.runs import evaluate
from lipscale.runs.assembly import assemble, resolve
from trainings import end_at_once, torchrun

lightning = pytest.importorskip("lightning", reason="needs the extra 'lightning'")

from lipscale.lightning import LipschitzFeedback

EPOCHS = 4
SGD = partial(torch.optim.SGD, lr=0.1)


def make_loaders():
    """Two noisy blobs: training, calibration and validation batches."""
    labels = torch.arange(600) % 2
    inputs = torch.randn(600, 4, generator=torch.Generator().manual_seed(0)) + labels[:, None]
    parts = ((0, 300), (300, 450), (450, 600))
    return [DataLoader(TensorDataset(inputs[a:b], labels[a:b]), batch_size=50) for a, b in parts]


@pytest.fixture(scope="module")
def loaders():
    return make_loaders()


class Module(lightning.LightningModule):
    def __init__(self, make_optimizer=SGD):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.make_optimizer = models.mlp(2, 4, 8, depth=1), make_optimizer
        self.seen = []

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, number):
        if number == 0:
            self.seen.append(lipscale.get_lipschitz(self.net))

    def configure_optimizers(self):
        return self.make_optimizer(self.parameters())


class Agreeing(Module):
    """Of two processes each takes every other sample of a batch, and validates with the constant of the other."""

    def training_step(self, batch, number):
        return super().training_step([part[self.global_rank :: 2] for part in batch], number)

    def validation_step(self, batch, number):
        constants = self.all_gather(torch.tensor(lipscale.get_lipschitz(self.net)))
        assert len(constants) == 2
        assert constants[0] == constants[1]


def trainer_of(tmp_path, *callbacks, epochs=EPOCHS, **how):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return lightning.Trainer(max_epochs=epochs, callbacks=[*callbacks], default_root_dir=tmp_path, **quiet, **how)


def plain_loop(loaders):
    """What the callback must amount to."""
    train, calibration, _ = loaders
    module = Module()
    net, optimizer = module.net, module.configure_optimizers()
    scheduler = lipscale.LipschitzScheduler(net, optimizer=optimizer, epochs=EPOCHS, lipschitz=2.0)
    constants = []
    for _ in range(EPOCHS):
        net.train()
        for inputs, labels in train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        with lipscale.evaluation_mode(net):
            logits, labels = (torch.cat(some) for some in zip(*((net(x), y) for x, y in calibration), strict=True))
        scheduler.step(logits, labels)
        if len(constants) == EPOCHS - 1:
            scheduler.freeze()
        constants.append(lipscale.get_lipschitz(net))
    return net, constants


def test_it_is_the_plain_loop_and_validation_sees_the_new_constant(loaders, tmp_path):
    train, calibration, validation = loaders
    module = Module()
    trainer_of(tmp_path, LipschitzFeedback(calibration, lipschitz=2.0), num_sanity_val_steps=0).fit(
        module, train, validation
    )
    net, constants = plain_loop(loaders)
    assert module.seen == constants
    assert len({*constants}) > 1
    inputs = torch.randn(20, 4)
    assert torch.equal(module.eval()(inputs), net.eval()(inputs))


class Drawn(IterableDataset):
    """The batches that a run of the command line draws, epoch by epoch."""

    def __init__(self, batches):
        self.batches, self.number = batches, 0

    def __iter__(self):
        self.number += 1
        return iter(self.batches.epoch("train", 1, self.number))


def test_it_ends_where_the_command_line_does(tmp_path):
    """The same data, seed and order: the same L to the bit, and the same metrics.

    ScheduleFree's weights are rounded each time that they are switched, and Lightning switches them once more.
    """
    asked = {"data": "digits", "model": "mlp", "width": 16, "optimizer": "schedulefree", "learning_rate": 0.01}
    settings = lipscale.Settings(**asked, epochs=EPOCHS, phase2_epochs=0, seed=3, device="cpu", out=tmp_path / "run")
    run = lipscale.train(settings, progress=False)
    dataset, preprocessing = prepare(read_dataset(settings))
    settings = resolve(settings, dataset, preprocessing)
    parts = assemble(settings, dataset, preprocessing)
    rate = partial(AdamWScheduleFree, lr=0.01, weight_decay=settings.weight_decay, warmup_steps=0)
    module = Module(rate)
    module.net = parts.net
    feedback = LipschitzFeedback(list(parts.calibration.in_order()), lipschitz=settings.lipschitz)
    trainer_of(tmp_path, feedback).fit(module, DataLoader(Drawn(parts.train), batch_size=None))
    assert lipscale.get_lipschitz(module.net) == lipscale.get_lipschitz(run.net)
    found = evaluate(module.net.eval(), dataset.test, epsilons=settings.epsilons).metrics
    for key in ("accuracy", "nll", "ece", "temperature", "certified_accuracy"):
        assert getattr(found, key) == pytest.approx(getattr(run.metrics, key), rel=1e-7), key


@pytest.mark.parametrize("how", [{"limit_val_batches": 0}, {"check_val_every_n_epoch": 3}, {"val_check_interval": 0.5}])
def test_it_moves_once_an_epoch_however_often_is_validated(loaders, tmp_path, how):
    train, calibration, validation = loaders
    module, feedback = Module(), LipschitzFeedback(calibration, lipschitz=2.0)
    trainer_of(tmp_path, feedback, **how).fit(module, train, validation)
    assert lipscale.get_lipschitz(module.net) == plain_loop(loaders)[1][-1]
    assert feedback.scheduler.frozen


def test_a_checkpoint_goes_on_to_the_same_constant(loaders, tmp_path):
    train, calibration, validation = loaders
    kept = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    trainer_of(tmp_path, LipschitzFeedback(calibration, lipschitz=2.0), kept).fit(Module(), train, validation)
    path = tmp_path / "epoch=1.ckpt"
    torch.load(path, weights_only=True)
    module = Module()
    trainer_of(tmp_path, LipschitzFeedback(calibration, lipschitz=2.0)).fit(module, train, validation, ckpt_path=path)
    assert lipscale.get_lipschitz(module.net) == pytest.approx(plain_loop(loaders)[1][-1], rel=1e-6)


def test_schedule_free_is_measured_and_shipped_with_its_averages(loaders, tmp_path):
    train, calibration, validation = loaders
    module = Module(lambda p: AdamWScheduleFree(p, lr=0.01, warmup_steps=2))
    seen = []

    class Watch(lightning.Callback):
        def on_validation_batch_start(self, trainer, *_):
            seen.append(trainer.optimizers[0].param_groups[0]["train_mode"])

        def on_train_batch_start(self, trainer, *_):
            seen.append(trainer.optimizers[0].param_groups[0]["train_mode"])

    trainer = trainer_of(tmp_path, LipschitzFeedback(calibration), Watch(), num_sanity_val_steps=0)
    trainer.fit(module, train, validation)
    assert seen == ([True] * 6 + [False] * 3) * EPOCHS
    assert not trainer.optimizers[0].param_groups[0]["train_mode"]


def test_empty_calibration_data_are_named(loaders, tmp_path):
    with pytest.raises(UserError, match="yield no batch"):
        trainer_of(tmp_path, LipschitzFeedback([])).fit(Module(), loaders[0])


def test_the_network_is_found_or_named(loaders, tmp_path):
    train, calibration, _ = loaders
    module = Module()
    module.second = models.mlp(2, 4, 8, depth=0)
    with pytest.raises(UserError, match=r"2 children with scaled layers: say which one is meant"):
        trainer_of(tmp_path, LipschitzFeedback(calibration)).fit(module, train)
    trainer_of(tmp_path, LipschitzFeedback(calibration, network=lambda m: m.net, lipschitz=3.0)).fit(module, train)
    assert lipscale.get_lipschitz(module.net) != pytest.approx(3.0, rel=1e-3)
    assert lipscale.get_lipschitz(module.second) == 1.0


def fit_together(folder):
    """What each of two processes does: train on its share, and tell the constant that it ends with."""
    train, calibration, validation = make_loaders()
    module, feedback = Agreeing(), LipschitzFeedback(calibration, lipschitz=2.0)
    trainer = trainer_of(folder, feedback, strategy="ddp", devices=2, use_distributed_sampler=False)
    trainer.fit(module, train, validation)
    (folder / str(trainer.global_rank)).write_text(str(lipscale.get_lipschitz(module.net)))


@pytest.mark.slow
def test_two_processes_that_share_batches_are_one(loaders, tmp_path):
    torchrun(__file__, tmp_path)
    for process in "01":
        found = float((tmp_path / process).read_text())
        assert found == pytest.approx(plain_loop(loaders)[1][-1], rel=1e-5)


if __name__ == "__main__":
    fit_together(Path(sys.argv[1]))
    end_at_once()
