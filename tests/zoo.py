"""Small models in the styles that people write: every family that `split` knows, with what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from progfed.split import UNet


class Basic(nn.Module):
    """A residual block as ResNet has it, with one ReLU module for two places and addition in place."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = norm(width)
        same = stride == 1 and inputs == width
        self.downsample = None if same else nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), norm(width))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = norm(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(Basic(8, 8, 1, norm), Basic(8, 8, 1, norm))
        self.layer2 = nn.Sequential(Basic(8, 16, 2, norm), Basic(16, 16, 1, norm))
        self.layer3 = nn.Sequential(Basic(16, 16, 2, norm))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    """Flattens with `view`, which only the usual layout of images allows."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Sequential(nn.Linear(16 * 16, 24), nn.ReLU(True), nn.Dropout(0.3), nn.Linear(24, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.classifier(x.view(x.size(0), -1))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pwconv1 = nn.Linear(width, 2 * width)
        self.pwconv2 = nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(functional.gelu(self.pwconv1(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (12, 20, 28)
        self.downsample_layers = nn.ModuleList([nn.Conv2d(3, widths[0], 2, 2)])
        for a, b in pairwise(widths):
            self.downsample_layers.append(nn.Sequential(nn.GroupNorm(1, a), nn.Conv2d(a, b, 2, 2)))
        self.stages = nn.ModuleList([nn.Sequential(ConvNeXtBlock(width), ConvNeXtBlock(width)) for width in widths])
        self.norm = nn.LayerNorm(widths[-1])
        self.head = nn.Linear(widths[-1], 5)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(3):
            x = self.stages[i](self.downsample_layers[i](x))
        return self.head(self.norm(x.mean([-2, -1])))


class Inverted(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        hidden = 2 * inputs
        self.skips = stride == 1 and inputs == width
        self.conv = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.skips else self.conv(x)


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True)),
            Inverted(8, 8, 1),
            Inverted(8, 12, 2),
            Inverted(12, 12, 1),
            Inverted(12, 16, 1),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class Layer(nn.Module):
    """A transformer layer with the norm first; it returns a tuple, as those of transformers do."""

    def __init__(self, width: int, *, causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.drop = nn.Dropout(0.1)
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        x = x + self.drop(self.proj(mixed.transpose(1, 2).flatten(2)))
        return x + self.drop(self.mlp(self.norm2(x))), None


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 16) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 17, 16) * 0.02)
        self.blocks = nn.ModuleList([Layer(16) for _ in range(4)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x, _ = block(x)
        return self.head(self.norm(x)[:, 0])


class Bert(nn.Module):
    """Takes keyword arguments and returns a dict; has position numbers as a buffer that no state_dict keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(40, 16), nn.Embedding(12, 16)
        self.register_buffer("position_ids", torch.arange(12)[None], persistent=False)
        self.norm = nn.LayerNorm(16)
        self.layers = nn.ModuleList([Layer(16) for _ in range(3)])
        self.pooler, self.classifier = nn.Linear(16, 16), nn.Linear(16, 5)
        self.unused = nn.Linear(3, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        x = self.norm(self.words(input_ids) + self.positions(self.position_ids[:, : input_ids.shape[1]]))
        mask = attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask)[0]
        return {"logits": self.classifier(torch.tanh(self.pooler(x[:, 0])))}


class GPT(nn.Module):
    """The output layer is the embedding, and sinusoids are a floating-point buffer that no state_dict keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(40, 16)
        self.register_buffer("sines", torch.sin(torch.arange(12)[:, None] / 2 ** torch.arange(16)), persistent=False)
        self.h = nn.ModuleList([Layer(16, causal=True) for _ in range(3)])
        self.ln_f = nn.LayerNorm(16)
        self.lm_head = nn.Linear(16, 40, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.sines[: ids.shape[1]]
        for layer in self.h:
            x, _ = layer(x)
        return self.lm_head(self.ln_f(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 8)
        self.lstm1, self.lstm2 = nn.LSTM(8, 12, batch_first=True), nn.LSTM(12, 12, batch_first=True)
        self.out = nn.Linear(12, 40)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.lstm1(self.embedding(ids))
        x, _ = self.lstm2(x)
        return self.out(x)


def double(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU(inplace=True))


class PlainUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.mid = double(2, 4), double(4, 8), double(8, 12)
        self.up2, self.dec2 = nn.ConvTranspose2d(12, 8, 2, 2), double(16, 8)
        self.up1, self.dec1 = nn.ConvTranspose2d(8, 4, 2, 2), double(8, 4)
        self.out = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.enc1(x)
        two = self.enc2(functional.max_pool2d(one, 2))
        inner = self.mid(functional.max_pool2d(two, 2))
        two = self.dec2(torch.cat((self.up2(inner), two), 1))
        return self.out(self.dec1(torch.cat((self.up1(two), one), 1)))


def levels(growth: Any) -> UNet:
    return UNet(
        encoders=("enc1", "enc2"),
        bottleneck="mid",
        decoders=("dec2", "dec1"),
        ups=("up2", "up1"),
        head="out",
        growth=growth,
    )


@dataclass(frozen=True)
class Family:
    """A model of a style, inputs for it, and how it is split."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    targets: Callable[[int], Tensor]
    stages: int = 3
    options: dict[str, Any] = field(default_factory=dict)


def images(number: int) -> Tensor:
    return torch.randn(number, 3, 16, 16)


def tokens(number: int) -> Tensor:
    return torch.randint(0, 40, (number, 12))


def labels(number: int) -> Tensor:
    return torch.randint(0, 5, (number,))


def sentences(number: int) -> dict[str, Tensor]:
    return {"input_ids": tokens(number), "attention_mask": (torch.arange(12) < 9).long().expand(number, -1).clone()}


def maps(number: int) -> Tensor:
    return torch.randint(0, 3, (number, 16, 16))


def grids(number: int) -> Tensor:
    return torch.randn(number, 2, 16, 16)


FAMILIES = {
    "resnet": Family(ResNet, images, labels),
    "vgg": Family(VGG, images, labels),
    "convnext": Family(ConvNeXt, images, labels),
    "mobilenet": Family(MobileNet, images, labels, options={"balance": "flops"}),
    "vit": Family(ViT, images, labels, stages=4),
    "bert": Family(Bert, sentences, labels),
    "gpt": Family(GPT, tokens, tokens),
    "lstm": Family(Recurrent, tokens, tokens),
    "unet-symmetric": Family(PlainUNet, grids, maps, options={"unet": levels("symmetric")}),
    "unet-asymmetric": Family(PlainUNet, grids, maps, options={"unet": levels("asymmetric")}),
}
