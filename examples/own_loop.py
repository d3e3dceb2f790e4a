"""LiST in a training loop of your own: a convolutional network on a DataLoader.

python examples/own_loop.py        (Fashion-MNIST, 5,000 images; some two minutes on one core)
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

import lipscale
from lipscale.data import limit, load_dataset, split_calibration

torch.manual_seed(0)
data = limit(load_dataset("fashion-mnist"), 5000, seed=0)
train, calibration = split_calibration(data.train, 0.1, seed=0, classes=data.classes)
loader = DataLoader(TensorDataset(train.inputs, train.labels), batch_size=128, shuffle=True)
held_out, test = calibration.inputs, data.test.inputs

epochs = 12
net = lipscale.models.convnet(num_classes=10, in_channels=1, width=16)
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.03, total_iters=epochs * len(loader))
scheduler = lipscale.LipschitzScheduler(net, lipschitz=1.0, optimizer=optimizer, epochs=epochs)

for epoch in range(1, epochs + 1):
    net.train()
    for inputs, labels in loader:
        loss = lipscale.offset_cross_entropy(net(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
    with lipscale.evaluation_mode(net):
        constant = scheduler.step(net(held_out), calibration.labels)  # T* on held-out data, about L <- L / T*
    print(f"epoch {epoch:2}  loss {loss.item():.4f}  T* {scheduler.last.temperature:.4f}  L {constant:.3f}")
scheduler.freeze()  # L*

with lipscale.evaluation_mode(net):
    lipscale.estimate_means(net, (inputs for inputs, _ in loader))  # the exact means of what is shipped
    certificate = lipscale.certify(net, test)
print(f"ECE {lipscale.metrics.ece(certificate.logits, data.test.labels):.4f}")
print(f"certified accuracy {certificate.accuracy(data.test.labels, [0, 36 / 255])}")
