"""Tests of the loaders; a package, so that they share the helpers in `hostile`."""
