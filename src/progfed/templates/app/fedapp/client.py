"""What runs on every machine with data."""

from progfed import flower

from .experiment import EXPERIMENT

app = flower.client(EXPERIMENT)
