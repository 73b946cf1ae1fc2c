"""Tests of the report; a package, so that its fixtures have a name of their own."""
