"""Tests of the Flower engine; a package, so that its helpers have a name of their own."""
