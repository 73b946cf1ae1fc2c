"""What runs next to the SuperLink."""

from progfed import flower

from .experiment import EXPERIMENT

app = flower.server(EXPERIMENT)
