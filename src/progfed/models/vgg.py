"""VGG-16 and VGG-19 for 32x32 images (appendix, Architectures): five components that end at max-pools."""

from __future__ import annotations

from torch import Tensor, nn

from progfed.blocks import Make, Progressive
from progfed.heads import with_heads
from progfed.models.pieces import Cuts, Norm, Piece, cut, norm_of

# The paper joins the first two components into E1 at S = 4; fewer stages join more, in the way its ResNets do.
_CUTS: Cuts = {1: (5,), 2: (3, 2), 3: (2, 2, 1), 4: (2, 1, 1, 1), 5: (1, 1, 1, 1, 1)}
_WIDTHS = (64, 128, 256, 512, 512)


def vgg16(classes: int = 100, *, stages: int = 4, norm: str | None = "batch", heads: str = "pooled") -> Progressive:
    """VGG-16: 13 convolutions and 3 fully connected layers; 34,015,396 parameters with 100 classes and a norm.

    Args:
        classes: The number of classes.
        stages: The number of blocks.
        norm: `"batch"` (the paper's centralized rows), `"group"` (no buffers, for federated training) or None.
        heads: The temporary heads: `"pooled"` as in the paper, or a `"grid"` that costs little (see `with_heads`).
    """
    return _vgg((2, 2, 3, 3, 3), classes, stages=stages, norm=norm, heads=heads, name="vgg16")


def vgg19(classes: int = 100, *, stages: int = 4, norm: str | None = "batch", heads: str = "pooled") -> Progressive:
    """VGG-19: 16 convolutions and 3 fully connected layers; 39,327,652 parameters with 100 classes and a norm.

    Its arguments are those of `vgg16`.
    """
    return _vgg((2, 2, 4, 4, 4), classes, stages=stages, norm=norm, heads=heads, name="vgg19")


def _vgg(depths: tuple[int, ...], classes: int, *, stages: int, norm: str | None, heads: str, name: str) -> Progressive:
    chosen = None if norm is None else norm_of(norm)
    inputs = (3, *_WIDTHS[:-1])
    pieces = [
        Piece(f"conv{number}", _component(*shape, norm=chosen), shape[1])
        for number, shape in enumerate(zip(inputs, _WIDTHS, depths, strict=True), start=1)
    ]
    model = cut(pieces, _CUTS, stages, head=lambda: Classifier(_WIDTHS[-1], classes), classes=classes, name=name)
    return with_heads(model, heads)


def _component(inputs: int, width: int, depth: int, *, norm: Norm | None) -> Make:
    """`depth` convolutions and a max-pool."""

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for channels in (inputs, *[width] * (depth - 1)):
            conv = nn.Conv2d(channels, width, 3, padding=1)
            layers.append(conv)
            if norm is None:
                # torch's default shrinks the signal at every layer, which only a norm would undo
                nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            else:
                layers.append(norm(width))
            layers.append(nn.ReLU(inplace=True))
        return nn.Sequential(*layers, nn.MaxPool2d(2))

    return make


class Classifier(nn.Module):
    """G_S of a VGG: three fully connected layers, on one position or on the mean of several where images are larger."""

    def __init__(self, width: int, classes: int, hidden: int = 4096) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, classes)
        self.dropout = nn.Dropout(0.5)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.dropout(self.fc1(features.flatten(2).mean(2)).relu())
        logits: Tensor = self.fc3(self.dropout(self.fc2(hidden).relu()))
        return logits
