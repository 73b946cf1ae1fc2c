"""A schedule that trains the newest block alone, and all of the model in the end."""

from progfed import Phase


def newest_then_all(rounds: int, stages: int) -> tuple[Phase, ...]:
    """One stage after the other, and the full model for what is left."""
    early = [Phase(stage, 1, trains=(stage,)) for stage in range(1, stages + 1)]
    return (*early, Phase(stages, rounds - stages))


SETTINGS = {"schedule": newest_then_all(5, 3)}
