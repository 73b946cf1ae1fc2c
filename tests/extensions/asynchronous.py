"""Asynchronous rounds on the clock of unlike devices."""

from progfed import Buffered, Device

DEVICES = [Device(down="80kbit", up=up, flops="2MFLOPS") for up in ("8kbit", "80kbit", "20kbit") * 2]
SETTINGS = {"asynchronous": Buffered(2), "cohort": 4}
