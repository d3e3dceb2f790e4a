"""LiST in a training loop of your own: Phase I on the embedded digits, on one screen.

python examples/own_loop.py
"""

import torch
from schedulefree import AdamWScheduleFree

import lipscale
from lipscale.data import load_dataset, split_calibration

digits = load_dataset("digits")
train, calibration = split_calibration(digits.train, 0.1, seed=0, classes=digits.classes)

net = lipscale.models.mlp(num_classes=10, input_shape=(1, 8, 8), width=128)
optimizer = AdamWScheduleFree([p for p in net.parameters() if p.requires_grad], lr=2e-3)
feedback = lipscale.SteadyFeedback(1.0)  # L_0 = 1; PaperFeedback is L <- L / T* to the letter
lipscale.set_lipschitz(net, feedback.constant)

for epoch in range(1, 31):
    net.train()
    optimizer.train()
    for batch in torch.randperm(len(train)).split(128):
        loss = lipscale.offset_cross_entropy(net(train.inputs[batch]), train.labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with lipscale.evaluation_mode(net, optimizer):  # averaged weights, orthogonal to float precision
        measure = lipscale.measure_temperature(net(calibration.inputs), calibration.labels)  # T* and its error
        lipscale.set_lipschitz(net, feedback.update(measure.value, measure.error))  # about L <- L / T*
    print(f"epoch {epoch:2}  loss {loss.item():.4f}  T* {measure.value:.4f}  L {feedback.constant:.3f}")
    if feedback.settled:
        break

lipscale.set_lipschitz(net, feedback.final)
with lipscale.evaluation_mode(net, optimizer):
    logits = net(digits.test.inputs)
    certificate = lipscale.certify(net, digits.test.inputs)
print(f"accuracy {lipscale.metrics.accuracy(logits, digits.test.labels):.4f}")
print(f"ECE {lipscale.metrics.ece(logits, digits.test.labels):.4f}")
print(f"certified accuracy {certificate.accuracy(logits, digits.test.labels, [36 / 255, 0.25])}")
