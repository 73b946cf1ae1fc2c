"""Figure 7, norm discrepancy: ResNet-18 on CIFAR-100, centralized (Sec. 4.5); and the same on embedded images.

`progfed run … --keep N` keeps the models that `progfed analyse` measures alpha_t and q_t on.
"""

from __future__ import annotations

from dataclasses import replace

from progfed.experiments import centralized, fashion
from progfed.experiments.pairs import pair
from progfed.experiments.printed import Paper
from progfed.recipe.rate import Constant
from progfed.schedule import end_to_end

_SMALL = replace(
    fashion.BASE,
    run="embedded",
    recipe=replace(
        fashion.BASE.recipe,
        schedule=end_to_end(60, stages=fashion.STAGES),
        rate=Constant(0.05),
        local=replace(fashion.BASE.recipe.local, epochs=1),
    ),
)

RUNS = (
    *centralized.rows(replace(centralized.BASE, name="discrepancy", run="resnet18")),
    *pair(replace(_SMALL, name="discrepancy"), stages=fashion.STAGES),
)

PAPER = Paper(shown="Fig. 7", discrepancy=True)
