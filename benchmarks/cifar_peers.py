"""The peers' own networks, losses and certificates on the complete CIFAR-10, for the same CPU-seconds as ours.

git clone https://github.com/hukkai/liresnet; git clone https://github.com/singlasahil14/SOC; pip install einops
git clone https://github.com/berndprach/1LipschitzLayersCompared
python -m benchmarks.cifar_peers results.jsonl --data-dir DIR --peer liresnet=liresnet --cpu 100 1000

The rows go into the file of `benchmarks.cifar`, which prints and draws them beside ours. Each peer is imported from its
own repository and trained by the optimizer, schedule and loss of its training script; what differs is said at each. The
number of steps is measured, so that the schedule ends with the budget. Its certificate is taken as it comes: ours are
proven, theirs rest on power iterations (LiResNet, CPL) or on a truncated series (SOC).
"""

import argparse
import json
import math
import sys
import time
import types
from abc import ABC, abstractmethod
from pathlib import Path

import torch
from torch import nn

from benchmarks.cifar import EPSILONS
from lipscale.data import read_dataset
from lipscale.metrics import measure
from lipscale.settings import Settings
from lipscale.training.batches import SampleBatches

TIMED = 8  # steps, after two that warm up


class Peer(ABC):
    """A network with its loss, optimizer and certificate, on pictures in [0, 1]."""

    batch_size: int
    net: nn.Module
    largest_gradient = math.inf  # what longer ones are clipped to

    @abstractmethod
    def loss(self, inputs, labels, progress):
        """Of a batch; `progress` goes from 0 to 1."""

    @abstractmethod
    def certified(self, inputs):
        """Logits and certified radii."""

    @abstractmethod
    def rate(self, progress):
        """The share of the learning rate."""

    def prepare(self):
        """What is done once before certificates are asked for."""
        self.net.eval()


class LiResNet(Peer):
    """EMMA, NAdam, cosine; cut to what a core trains: 2 blocks (of 12), a dense part of 2 layers of 256 (8 of 2,048).

    That part alone costs more than a whole network of ours. 5 power iterations a step (10); lookahead, generated images
    and RandAugment are left out.
    """

    batch_size, depth, dense, largest_gradient = 256, 2, 256, 3.0

    def __init__(self, folder, width):
        sys.path.insert(0, str(folder))
        from models.blocks import LiResMLP
        from models.model import Map2Vec, head

        import models

        self.models, self.width = models, width
        self.net = models.GloroNet(depth=self.depth, width=self.width, num_lc_iter=5)
        activation = self.net.linear.act
        self.net.neck = Map2Vec(self.width, 16, self.dense, activation)
        self.net.linear = LiResMLP(self.dense, 2, activation)
        self.net.head = head(self.dense, 10, use_lln=True)
        self.net.set_num_lc_iter(5)
        self.optimizer = torch.optim.NAdam(self.net.parameters(), lr=0.001)

    def loss(self, inputs, labels, progress):
        """From a tenth of the radius to three times of it, as its configuration has it."""
        epsilon = EPSILONS[0] * (0.1 + 2.9 * min(2 * progress, 1))
        bound = self.net.sub_lipschitz()
        return self.models.emma_loss(self.net, inputs, labels, epsilon, bound)[2]

    def rate(self, progress):
        """Warm-up over 2.5 %, then a cosine."""
        return min(progress / 0.025, 0.5 * (1 + math.cos(math.pi * progress))) + 1e-5

    def prepare(self):
        """500 power iterations, as its script does."""
        super().prepare()
        self.net.set_num_lc_iter(500)
        self.bound = float(self.net.sub_lipschitz().detach())

    def certified(self, inputs):
        """The least margin over the bound times the distance between two rows of the head."""
        logits, head = self.net(inputs), self.net.head.get_weight()
        top = logits.argmax(1)
        distance = (head[top][:, None] - head[None]).norm(dim=-1)
        margin = logits.gather(1, top[:, None]) - logits
        return logits, (margin / (self.bound * distance).clamp_min(1e-12)).scatter(1, top[:, None], math.inf).amin(1)


class SOC(Peer):
    """LipConvNet-5 with MaxMin, a normalised last layer and no certificate regularisation; SGD in two steps."""

    batch_size, std = 128, 0.2507

    def __init__(self, folder, width):
        for name in ("torchvision", "apex"):  # which its utilities import, and which a CPU does without
            sys.modules[name] = types.ModuleType(name)
        sys.modules["torchvision"].datasets = sys.modules["torchvision"].transforms = None
        sys.modules["apex"].amp = None
        torch.Tensor.cuda = nn.Module.cuda = lambda self, *_, **__: self
        drawn = torch.randn
        torch.randn = lambda *shape, device=None, **options: drawn(*shape, **options)
        sys.path.insert(0, str(folder))
        import utils
        from lip_convnets import LipConvNet

        self.width, self.utils, self.mean = width, utils, torch.tensor(utils.cifar10_mean).view(3, 1, 1)
        self.net = LipConvNet("soc", "maxmin", init_channels=self.width, block_size=1, num_classes=10, lln=True)
        convolutions, activations, others = utils.parameter_lists(self.net)
        groups = [{"params": activations, "weight_decay": 0.0}, {"params": convolutions + others}]
        self.optimizer = torch.optim.SGD([g for g in groups if g["params"]], lr=0.1, momentum=0.9, weight_decay=5e-4)

    def forward(self, inputs):
        """On standardised pictures."""
        return self.net((inputs - self.mean) / self.std)

    def loss(self, inputs, labels, progress):
        """Cross-entropy."""
        return nn.functional.cross_entropy(self.forward(inputs), labels)

    def rate(self, progress):
        """A tenth after a half, a hundredth after three quarters."""
        return 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01

    def certified(self, inputs):
        """Its own certificate, for 1 / std in front of a network that is taken to be 1-Lipschitz."""
        logits = self.forward(inputs)
        return logits, self.utils.lln_certificates(logits, logits.argmax(1), self.net.last_layer, 1 / self.std)


class CPL(Peer):
    """The smallest network of 1-Lipschitz Layers Compared with convex potential layers, its cheapest; SGD in one cycle.

    Learning rate, weight decay and loss are those of its own longest training, which its search had chosen.
    """

    batch_size, width = 256, 16
    margin, temperature = 0.3993, 0.25

    def __init__(self, folder, _):
        sys.path.insert(0, str(folder))
        import lipnn

        self.net, self.mean = lipnn.cifar10_lipnetXS_cpl(), torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
        self.net(torch.zeros(1, 3, 32, 32))  # its layers make their buffers when they see an image
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.0343, momentum=0.9, weight_decay=1.272e-4)

    def loss(self, inputs, labels, progress):
        """Cross-entropy with a margin that the true class must exceed the others by."""
        logits = self.net(inputs - self.mean) - self.margin * nn.functional.one_hot(labels.long(), 10)
        return nn.functional.cross_entropy(logits / self.temperature, labels) * self.temperature

    def rate(self, progress):
        """One cycle: a cosine up over 30 %, and one down to nothing."""
        if progress < 0.3:
            return 0.52 - 0.48 * math.cos(math.pi * progress / 0.3)
        return 0.5 + 0.5 * math.cos(math.pi * (progress - 0.3) / 0.7)

    def certified(self, inputs):
        """The margin over the square root of 2, for a network that is taken to be 1-Lipschitz."""
        logits = self.net(inputs - self.mean)
        first, second = logits.topk(2).values.unbind(1)
        return logits, (first - second) / math.sqrt(2)


PEERS = {"liresnet": LiResNet, "soc": SOC, "cpl": CPL}
TITLES = {"liresnet": "LiResNet", "soc": "SOC", "cpl": "CPL (1-Lipschitz Layers Compared)"}


def one_run(name, folder, width, cpu, seed, data_dir):
    """Train for these CPU-seconds, then test."""
    start = time.process_time()
    torch.manual_seed(seed)
    dataset = read_dataset(Settings(data="cifar10", data_dir=data_dir))
    peer = PEERS[name](folder, width)
    batches = SampleBatches(dataset.train, peer.batch_size, "crop+flip", seed, crop=4)
    for group in peer.optimizer.param_groups:
        group["peak"] = group["lr"]
    done, steps, epoch, timed = 0, None, 0, None
    peer.net.train(True)
    while steps is None or done < steps:
        for inputs, labels in batches.epoch(epoch):
            if done == 2:
                timed = time.process_time()
            if done == 2 + TIMED:
                each = (time.process_time() - timed) / TIMED
                steps = done + max(1, int((cpu - (time.process_time() - start)) / each))
            if steps is not None and done >= steps:
                break
            progress = done / steps if steps else 0.0
            for group in peer.optimizer.param_groups:
                group["lr"] = group["peak"] * peer.rate(progress if steps else 0.001)
            loss = peer.loss(inputs, labels, progress)
            peer.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(peer.net.parameters(), peer.largest_gradient)
            peer.optimizer.step()
            done += 1
        epoch += 1
    taken = time.process_time() - start
    peer.prepare()
    test = SampleBatches(dataset.test, 512)
    with torch.no_grad():
        logits, radii = (torch.cat(part) for part in zip(*(peer.certified(x) for x, _ in test.in_order()), strict=True))
    labels = dataset.test.labels.long()
    right, scores = logits.argmax(1) == labels, measure(logits, labels)
    return {
        "variant": TITLES[name],
        **{"cpu": cpu, "seed": seed, "held_out": False, "changes": {}, "taken": taken, "width": peer.width},
        **{"epochs": round(done / len(batches), 1), "L": 1.0, "accuracy": scores.accuracy, "ece": scores.ece},
        **{"esce": scores.esce, "calibrated": scores.calibrated},
        "certified": [float((right & (radii > epsilon)).double().mean()) for epsilon in EPSILONS],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--peer", required=True, metavar="NAME=FOLDER", help="liresnet, soc or cpl, and its repository")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--cpu", type=float, nargs="*", default=[100.0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    name, folder = arguments.peer.split("=", 1)
    for cpu in arguments.cpu:
        for seed in arguments.seeds:
            row = one_run(name, Path(folder).resolve(), arguments.width, cpu, seed, arguments.data_dir)
            with arguments.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row)


if __name__ == "__main__":
    main()
