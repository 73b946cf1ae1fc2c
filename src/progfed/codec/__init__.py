"""Codecs: how named tensors become the bytes of a message, and back."""

from progfed.codec.apart import Apart
from progfed.codec.base import LIMIT, Codec, Float, Schema, numel, schema_of
from progfed.codec.buffers import ExactBuffers
from progfed.codec.chain import Chain
from progfed.codec.dither import Dither
from progfed.codec.eden import Eden
from progfed.codec.feedback import feedback
from progfed.codec.fitted import Fitted, bits_of, with_bits
from progfed.codec.half import Half
from progfed.codec.names import NAMES, codec
from progfed.codec.quantize import Quantize
from progfed.codec.rotate import Rotate
from progfed.codec.sparsify import Sparsify, Top

__all__ = [
    "LIMIT",
    "NAMES",
    "Apart",
    "Chain",
    "Codec",
    "Dither",
    "Eden",
    "ExactBuffers",
    "Fitted",
    "Float",
    "Half",
    "Quantize",
    "Rotate",
    "Schema",
    "Sparsify",
    "Top",
    "bits_of",
    "codec",
    "feedback",
    "numel",
    "schema_of",
    "with_bits",
]
