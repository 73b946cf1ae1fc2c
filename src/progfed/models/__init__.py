"""The paper's models (appendix, Architectures) and a small transformer: functions that return a `Progressive`."""

from progfed.models.convnet import convnet_cifar, convnet_mnist
from progfed.models.gpt import gpt
from progfed.models.resnet import resnet18, resnet34, resnet50, resnet152
from progfed.models.unet import unet
from progfed.models.vgg import vgg16, vgg19

__all__ = [
    "convnet_cifar",
    "convnet_mnist",
    "gpt",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet152",
    "unet",
    "vgg16",
    "vgg19",
]
