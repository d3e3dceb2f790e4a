"""Networks as people have them, torchvision's in small: to be converted, followed and attacked."""

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """torchvision's, with its stem of 7 x 7 pixels and its overlapping max pool."""

    def __init__(self, width=8, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        for k in range(1, 5):
            first = BasicBlock(widths[k - 1], widths[k], 1 if k == 1 else 2)
            setattr(self, f"layer{k}", nn.Sequential(first, BasicBlock(widths[k], widths[k], 1)))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    """torchvision's vgg11_bn: pools between convolutions, an adaptive pool to several pixels, dropout in its head."""

    def __init__(self, width=8, classes=10):
        super().__init__()
        layers, inputs = [], 3
        for outputs in (width, "M", 2 * width, "M", 4 * width, 4 * width, "M", 8 * width, 8 * width, "M"):
            if outputs == "M":
                layers.append(nn.MaxPool2d(2, 2))
            else:
                conv = nn.Conv2d(inputs, outputs, 3, padding=1)
                layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
                inputs = outputs
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((3, 3))
        self.classifier = nn.Sequential(
            *(nn.Linear(inputs * 9, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 32), nn.ReLU(True), nn.Dropout()),
            nn.Linear(32, classes),
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        hidden = inputs * expansion
        self.use_skip = stride == 1 and inputs == outputs
        layers = (
            [] if expansion == 1 else [nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(True)]
        )
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(True),
        ]
        self.conv = nn.Sequential(*layers, nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return x + self.conv(x) if self.use_skip else self.conv(x)


class MobileNet(nn.Module):
    """torchvision's mobilenet_v2 in small: depthwise convolutions, ReLU6, functions in the forward pass."""

    def __init__(self, width=8, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        plan = [(width, 1, 1), (2 * width, 2, 4), (2 * width, 1, 4), (4 * width, 2, 4), (4 * width, 1, 4)]
        blocks, inputs = [], width
        for outputs, stride, expansion in plan:
            blocks.append(InvertedResidual(inputs, outputs, stride, expansion))
            inputs = outputs
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.relu6(self.bn(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        x = x.mean([2, 3])
        return self.head(F.dropout(x, 0.2, self.training))


NETWORKS = {"resnet18": ResNet18, "vgg": VGG, "mobilenet": MobileNet}
