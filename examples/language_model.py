"""A small transformer that learns to write like the speakers of some plays, each of whom is a client.

Run it with `python examples/language_model.py`; the text comes with progfed. `progfed run speakers` is the same with
the baseline next to it.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

import progfed
from progfed.data.text import decode, encode
from progfed.experiments.speakers import CONTEXT, RUNS, STAGES
from progfed.models.gpt import continued


def main(rounds: int) -> None:
    experiment = next(run for run in RUNS if run.run == "progressive")
    schedule = progfed.progressive(rounds, stages=STAGES)
    experiment = replace(experiment, recipe=replace(experiment.recipe, schedule=schedule), evaluate_every=rounds)
    model, start = experiment.make_model(), encode("To be, or not ")
    print("before:", repr(decode(continued(model.at(STAGES), start, 80, context=CONTEXT))))
    with tempfile.TemporaryDirectory() as folder:
        summary = progfed.run(experiment, folder, workers=2)
        trained = load_file(Path(folder) / "model.safetensors")
    print("after: ", repr(decode(continued(model.at(STAGES, trained), start, 80, context=CONTEXT))))
    print(f"next characters guessed right: {summary['metric']:.1f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    main(parser.parse_args().rounds)
