"""Experiments, and the run directories that training them leaves behind."""
