"""Codecs: how named tensors become the bytes of a message, and back."""

from progfed.codec.base import Codec, Float, Schema, numel, schema_of

__all__ = ["Codec", "Float", "Schema", "numel", "schema_of"]
