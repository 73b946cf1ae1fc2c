"""The paper's models: plain functions that return a `Progressive` (appendix, Architectures)."""

from progfed.models.convnet import convnet_cifar, convnet_mnist
from progfed.models.resnet import resnet18, resnet34, resnet50, resnet152
from progfed.models.unet import unet
from progfed.models.vgg import vgg16, vgg19

__all__ = [
    "convnet_cifar",
    "convnet_mnist",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet152",
    "unet",
    "vgg16",
    "vgg19",
]
