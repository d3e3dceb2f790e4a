"""Post-hoc calibrators on two networks that never saw the calibration set: prints the table of docs/POSTHOC.md.

python examples/posthoc.py        (Fashion-MNIST, 5,000 images; under two minutes on one core)
"""

from dataclasses import astuple

import torch
import torch.nn.functional as F

from lipscale import Settings, fit
from lipscale.calibration.posthoc import compare
from lipscale.data import split_calibration
from lipscale.data.batches import epoch_batches
from lipscale.models import mlp
from lipscale.models.parts import UNCONSTRAINED
from lipscale.runs.assembly import build_network, read_data
from lipscale.training.inference import predict_logits

settings = Settings(data="fashion-mnist", limit=5000, model="mlp", width=128)
dataset, preprocessing = read_data(settings)
train, calibration = split_calibration(dataset.train, 0.1, seed=0, classes=dataset.classes)

fixed = build_network(settings, len(dataset.classes), preprocessing)
fit(fixed, train, method="fixed", lipschitz=16.0)  # the calibration set is not its business

torch.manual_seed(0)
standard = mlp(len(dataset.classes), (1, 28, 28), 128, mean=preprocessing.mean, parts=UNCONSTRAINED)
optimizer = torch.optim.Adam(standard.parameters())
for epoch in range(settings.epochs):
    for inputs, labels in epoch_batches(train, 128, augmentation="none", seed=0, stream=("train", 1, epoch)):
        optimizer.zero_grad()
        F.cross_entropy(standard(inputs), labels).backward()
        optimizer.step()

for name, net in (("standard", standard), ("fixed, L = 16", fixed)):
    net.eval()
    held_out, test = predict_logits(net, calibration), predict_logits(net, dataset.test)
    for row in compare(held_out, calibration.labels, test, dataset.test.labels):
        which, accuracy, nll, ece, limit, calibrated, _ = astuple(row)
        print(
            f"| {name} | {which} | {accuracy:.3f} | {nll:.3f} | {ece:.3f} | {limit:.3f} |",
            "yes |" if calibrated else "no |",
        )
