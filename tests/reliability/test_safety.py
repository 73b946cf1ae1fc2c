"""What clients and files can do to a run that trusts nobody: numbers that overflow, links, pipes, nested JSON."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.cases import dense, outcome, plain, population
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from progfed.blocks import Progressive
from progfed.client.learner import Learner
from progfed.codec import Chain, Float, Schema, codec
from progfed.costs.phase import phase_cost
from progfed.engines.local import LocalEngine
from progfed.errors import MessageError, StorageError, TrainingError, UsageError
from progfed.population import Examples, FederatedData
from progfed.recipe.aggregate import Clipped, Median, Trimmed
from progfed.recipe.growth import Plateau
from progfed.recipe.optimizers import fedadam, fedavg
from progfed.report.collect import collect
from progfed.report.write import write_report
from progfed.runs import checkpoint
from progfed.runs.directory import RunDirectory, opened
from progfed.runs.experiment import Experiment
from progfed.runs.identity import identity
from progfed.runs.resume import resume
from progfed.runs.snapshots import kept
from progfed.runs.train import run, train
from progfed.schedule import end_to_end, progressive
from progfed.server.loop import Round, federate
from progfed.wire.engine import ClientState, Task, Update
from progfed.wire.message import ASK, UP, Envelope, seal, unseal

RUN = "0" * 16


@dataclass(frozen=True)
class Unchecked(Float):
    """A codec of somebody's own, which decodes whatever the bytes are."""

    name: str = "unchecked"

    def decode(self, data: memoryview, schema: Schema) -> dict[str, Tensor]:
        found = torch.frombuffer(bytearray(data), dtype=torch.float32).split([_numel(s) for s in schema.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(schema.items(), found, strict=True)}


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


class Spoiling:
    """An engine whose replies are changed on the way: `spoil` is given the task and the honest update."""

    def __init__(self, experiment: Experiment, spoil: Callable[[Task, Update], Update]) -> None:
        self.client_states: dict[int, ClientState] = {}
        assert isinstance(experiment.data, FederatedData)
        self._learner = Learner(experiment.make_model(), experiment.data, experiment.recipe, identity(experiment))
        self._spoil = spoil
        self.sent = 0

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Update]:
        for task in tasks:
            honest, self.client_states[task.client] = self._learner(task, self.client_states.get(task.client, {}))
            update = self._spoil(task, honest)
            self.sent += len(update.message)
            yield update


def filled(value: float, *, experiment: Experiment, rounds: Iterable[int] = (1,), loss: float = 0.5) -> Any:
    """Replaces every number of every update of some rounds."""

    def spoil(task: Task, honest: Update) -> Update:
        if task.round not in rounds:
            return honest
        schema = phase_cost(experiment.make_model(), task.phase).up
        change = {name: torch.full(shape, value) for name, shape in schema.items()}
        envelope = Envelope(UP, identity(experiment), task.round, task.phase.stage, task.client, 4, loss)
        return Update(task.client, seal(envelope, change, experiment.recipe.up, 0))

    return spoil


def rounds_of(experiment: Experiment, spoil: Callable[[Task, Update], Update]) -> tuple[list[Round], Spoiling]:
    engine = Spoiling(experiment, spoil)
    assert isinstance(experiment.data, FederatedData)
    done = federate(
        experiment.make_model(), experiment.data.sizes, experiment.recipe, engine, run_id=identity(experiment)
    )
    return list(done), engine


def one_round(**changes: Any) -> Experiment:
    return plain(**{"schedule": end_to_end(1, stages=3), **changes}).experiment


# --- numbers that overflow ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [3e38, 2e31, -2e31])
def test_floats_have_the_limit_of_every_other_codec(value: float) -> None:
    with pytest.raises(MessageError, match=r"not finite or exceed 1e\+31") as caught:
        Float().decode(memoryview(Float().encode({"w": torch.tensor([0.0, value])}, 0)), {"w": (2,)})
    assert caught.value.reason == "not finite"
    experiment = one_round()
    with pytest.raises(TrainingError, match=r"0 of 3 updates were valid, 1 needed \(3 not finite"):
        rounds_of(experiment, filled(value, experiment=experiment))


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"server": fedavg(), "up": Unchecked()}, 3e38),  # the sum of finite updates is not finite
        ({"server": fedadam()}, 1e25),  # the square is not finite: every later step would be 0
    ],
    ids=["mean", "square"],
)
def test_a_step_that_overflows_is_not_committed_and_the_run_goes_on_from_the_round_before(
    tmp_path: Path, changes: dict[str, Any], value: float
) -> None:
    experiment = plain(**changes).experiment
    engine = Spoiling(experiment, filled(value, experiment=experiment, rounds=(3,)))
    with pytest.raises(TrainingError, match=r"round 3: the step of the server leads to numbers that are not finite"):
        list(train(experiment, tmp_path / "cut", data=tmp_path, engine=lambda: nullcontext(engine)))
    saved = checkpoint.load(tmp_path / "cut" / "checkpoint")
    assert saved is not None
    assert saved.round == len(RunDirectory(tmp_path / "cut").records()) == 2
    run(experiment, tmp_path / "cut")
    run(experiment, tmp_path / "whole")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("rate", [1e38, 1e30], ids=["not finite", "more than a message may hold"])
def test_a_model_that_could_not_be_sent_is_not_committed(rate: float) -> None:
    experiment = one_round(server=fedavg(rate))
    with pytest.raises(TrainingError, match=r"round 1: the step of the server leads to numbers .* exceed 1e\+31"):
        rounds_of(experiment, filled(100.0, experiment=experiment))


def test_numbers_of_a_codec_that_checks_nothing_are_checked_all_the_same() -> None:
    sent = Envelope(UP, RUN, 1, 1, 0, 1, 0.5)
    message = seal(sent, {"w": torch.tensor([float("nan")])}, Unchecked(), 0)
    with pytest.raises(MessageError, match="hold NaN or infinite numbers"):
        unseal(message, sent, {"w": (1,)}, Unchecked())


def test_a_loss_that_would_spoil_the_mean_is_refused() -> None:
    experiment = one_round()
    first = experiment.recipe.draw(5, 1)[0]
    lie = filled(0.1, experiment=experiment, loss=1.7e308)
    (done,), _ = rounds_of(experiment, lambda task, honest: lie(task, honest) if task.client == first else honest)
    assert done.rejected == {"loss": 1}
    assert done.loss < 100


@pytest.mark.parametrize("lie", [1e30, -1e30])
def test_where_one_client_shall_not_decide_its_loss_moves_neither_the_records_nor_growth(lie: float) -> None:
    growth = Plateau(least=1, window=1, tolerance=0.5)
    experiment = plain(schedule=progressive(9, stages=3), cohort=5, aggregate=Median(), growth=growth).experiment

    def lying(task: Task, honest: Update) -> Update:
        if task.client != 2:
            return honest
        schema = phase_cost(experiment.make_model(), task.phase).up
        envelope = Envelope(UP, identity(experiment), task.round, task.phase.stage, 2)
        found, change = unseal(honest.message, replace(envelope, examples=99), schema, experiment.recipe.up)
        told = lie * (1 if task.round % 2 else 2)
        return Update(2, seal(replace(found, loss=told), change, experiment.recipe.up, 0))

    honest, lied = (rounds_of(experiment, spoil)[0] for spoil in (lambda task, update: update, lying))
    assert [done.rejected for done in lied] == [{}] * len(honest)
    assert [done.phase.stage for done in lied] == [done.phase.stage for done in honest]
    assert all(torch.equal(lied[-1].progress.params[k], v) for k, v in honest[-1].progress.params.items())
    assert all(abs(done.loss) < 100 for done in lied)


# --- clients whose numbers their codec cannot hold ------------------------------------------------------------------


def test_a_message_error_survives_the_way_out_of_a_worker() -> None:
    error = pickle.loads(pickle.dumps(MessageError("range", "too large")))
    assert (error.reason, str(error)) == ("range", "range: too large")


def loud_client(client: int) -> FederatedData:
    """One client's inputs are so large that its update is: more than 65504, the most that fp16 holds."""
    quiet = population((6,))

    def load(index: int) -> Examples:
        found = quiet.load(index)
        return Examples(found.inputs * 1e7, found.targets) if index == client else found

    return replace(quiet, load=load)


@pytest.mark.parametrize("feedback", [False, True], ids=["forgetting", "with error feedback"])
def test_a_client_whose_update_its_codec_cannot_hold_is_counted_and_the_round_goes_on(feedback: bool) -> None:
    recipe = one_round(up=codec("fp16"), cohort=5, schedule=end_to_end(3, stages=1), feedback=feedback).recipe
    data, outcomes = loud_client(2), []
    for workers in (1, 2):
        with LocalEngine(dense(), data, recipe, workers=workers) as engine:
            done = list(federate(dense(), data.sizes, recipe, engine))
        assert [round_.rejected for round_ in done] == [{"not finite": 1}] * 3
        outcomes.append(done[-1].progress.params)
    assert all(torch.equal(outcomes[0][name], outcomes[1][name]) for name in outcomes[0])


def test_when_no_update_can_be_held_the_sentence_says_what_to_do() -> None:
    recipe = one_round(up=codec("fp16"), cohort=5, schedule=end_to_end(1, stages=1)).recipe
    data = replace(loud_client(0), load=lambda index: loud_client(index).load(index))
    with (
        LocalEngine(dense(), data, recipe) as engine,
        pytest.raises(TrainingError, match="lower the learning rate, or use a codec for larger numbers"),
    ):
        list(federate(dense(), data.sizes, recipe, engine))


def test_a_model_that_the_downlinks_codec_cannot_hold_ends_training_with_a_sentence() -> None:
    experiment = plain(down=codec("fp16"), server=fedavg(1e7), schedule=end_to_end(3, stages=3)).experiment
    with pytest.raises(TrainingError, match=r"round 2: the model cannot be sent with codec fp16 .*use bf16") as caught:
        rounds_of(experiment, filled(1.0, experiment=experiment))
    assert caught.value.exit_code == 4


# --- what replies cost, and what they may ask for -------------------------------------------------------------------


def test_the_bytes_of_refused_updates_are_counted() -> None:
    experiment = one_round()
    first = experiment.recipe.draw(5, 1)[0]

    def longer(task: Task, honest: Update) -> Update:
        return replace(honest, message=honest.message + b"and more") if task.client == first else honest

    (done,), engine = rounds_of(experiment, longer)
    assert done.rejected == {"length": 1}
    assert done.cost.up_bytes == engine.sent


@pytest.mark.parametrize(
    "wrong", [{"round": 9}, {"stage": 2}, {"client": 77}, {"run_id": "f" * 16}], ids=lambda wrong: next(iter(wrong))
)
def test_only_a_valid_request_for_the_whole_model_is_answered(wrong: dict[str, Any]) -> None:
    experiment = one_round(delta=True)
    first = experiment.recipe.draw(5, 1)[0]

    def asking(task: Task, honest: Update) -> Update:
        if task.client != first:
            return honest
        envelope = Envelope(ASK, identity(experiment), task.round, task.phase.stage, task.client)
        return replace(honest, message=seal(replace(envelope, **wrong), {}, Float(), 0))

    (done,), _ = rounds_of(experiment, asking)
    (honest,), _ = rounds_of(experiment, lambda task, update: update)
    assert done.rejected == {"kind": 1}
    assert done.cost.down_bytes == honest.cost.down_bytes


# --- rules that would silently be others ----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Trimmed(0.2), Clipped(1.0, Trimmed(0.2))])
def test_a_trimmed_mean_that_would_trim_nobody_is_refused(rule: Any) -> None:
    with pytest.raises(UsageError, match=r"drops nobody from a cohort of 4 .*take a cohort of 5 or more"):
        plain(cohort=4, aggregate=rule)
    assert plain(cohort=5, aggregate=rule).experiment.recipe.needed == 5


def test_a_round_with_fewer_updates_than_can_be_trimmed_ends_training() -> None:
    experiment = one_round(cohort=5, aggregate=Trimmed(0.2))
    first = experiment.recipe.draw(5, 1)[0]
    with pytest.raises(TrainingError, match=r"4 of 5 updates were valid, 5 needed"):
        rounds_of(experiment, lambda task, honest: Update(first, b"") if task.client == first else honest)


def test_a_chain_with_a_codec_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a chain is made of quantizers, masks and rotations, and Float\(.* is none"):
        Chain((codec("LQ-8"), Float()))  # type: ignore[arg-type]


class Counting(nn.Module):
    """A layer with whole numbers as parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(5, dtype=torch.int64), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, :5] * self.table


def test_a_model_of_whole_numbers_is_refused() -> None:
    model = Progressive(
        blocks=(Counting,), heads=(lambda: nn.Linear(5, 3),), example=torch.zeros(1, 6), name="counting"
    )
    recipe, data = one_round(schedule=end_to_end(1, stages=1)).recipe, population((6,))
    with pytest.raises(UsageError, match=r"counting: parameter E1\.table is of torch\.int64, and only floating-point"):
        list(federate(model, data.sizes, recipe, LocalEngine(model, data, recipe)))


# --- what clients remember ------------------------------------------------------------------------------------------


class Remembering(Spoiling):
    """Clients that keep, besides what a recipe asks for, how often they were asked."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment, lambda task, honest: honest)
        self.times: Counter[int] = Counter()

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Update]:
        for update in super().__call__(tasks):
            self.times[update.client] += 1
            self.client_states[update.client]["asked"] = {"a/times": torch.tensor(float(self.times[update.client]))}
            yield update


@pytest.mark.parametrize("feedback", [False, True])
def test_whatever_clients_remember_is_there_after_a_resume(tmp_path: Path, feedback: bool) -> None:
    experiment = plain(up=codec("LQ-4"), feedback=feedback, delta=feedback).experiment
    engine = Remembering(experiment)
    rounds = train(experiment, tmp_path, data=tmp_path, engine=lambda: nullcontext(engine))
    for _ in range(4):
        next(rounds)
    rounds.close()
    client_states: dict[int, ClientState] = {}
    with opened(tmp_path) as directory:
        resume(directory, identity(experiment), client_states)
    assert {client: memory["asked"]["a/times"].item() for client, memory in client_states.items()} == dict(engine.times)
    assert all(("lost" in memory) == feedback for memory in client_states.values())


# --- folders of runs that somebody else has written to --------------------------------------------------------------


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic link", "hard link"])
def test_links_in_place_of_files_that_are_written_aside_are_not_followed(
    tmp_path: Path, precious: Path, link: Callable[[Path, Path], None]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    link(precious, folder / ".experiment.json.writing")
    running = train(plain().experiment, folder, data=tmp_path)
    next(running)
    running.close()
    for name in (".summary.json.writing", ".model.safetensors.writing"):
        link(precious, folder / name)
    run(plain().experiment, folder)
    assert precious.read_text() == "precious"
    assert not any(path.name.endswith(".writing") for path in folder.iterdir())


@pytest.mark.parametrize("name", [".lock", "rounds.jsonl"])
def test_a_link_in_place_of_the_lock_or_the_records_is_refused_and_not_followed(
    tmp_path: Path, precious: Path, name: str
) -> None:
    folder = tmp_path / "run"
    running = train(plain().experiment, folder, data=tmp_path)
    next(running)
    running.close()
    (folder / name).unlink()
    (folder / name).symlink_to(precious)
    with pytest.raises(StorageError, match="cannot be written"):
        run(plain().experiment, folder)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("name", [".lock", "experiment.json", "rounds.jsonl", "summary.json", "privacy.secret"])
def test_a_pipe_in_a_runs_folder_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    experiment = plain().experiment
    if name == "privacy.secret":
        from progfed.recipe.privacy import Privacy

        experiment = plain(privacy=Privacy(clip=1.0, noise=1.0), weighting="uniform").experiment
    running = train(experiment, folder, data=tmp_path)
    next(running)
    running.close()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(StorageError, match=name.replace(".", r"\.") if name != ".lock" else "cannot be written"):
        run(experiment, folder)


BAD_STATES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda state: [],
    "no cost": lambda state: {key: value for key, value in state.items() if key != "cost"},
    "no experiment": lambda state: {key: value for key, value in state.items() if key != "experiment"},
    "an odd cost": lambda state: state | {"cost": {"euros": 3}},
    "odd slots": lambda state: state | {"slots": 3},
    "odd holders": lambda state: state | {"holders": ["me"]},
    "an odd growth": lambda state: state | {"growth": {"lengths": 3}},
}


def rewritten(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put other files into the only checkpoint of a run, with digests that fit."""
    (saved,) = (folder / "checkpoint").iterdir()
    manifest = json.loads((saved / "manifest.json").read_text())
    for name, data in files.items():
        (saved / name).write_bytes(data)
        manifest["sha256"][name] = hashlib.sha256(data).hexdigest()
    (saved / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    running = train(plain().experiment, tmp_path / "run", data=tmp_path)
    next(running)
    running.close()
    return tmp_path / "run"


@pytest.mark.parametrize("kind", BAD_STATES)
def test_a_state_that_is_not_what_was_saved_is_one_sentence(begun: Path, kind: str) -> None:
    (saved,) = (begun / "checkpoint").iterdir()
    state = json.loads((saved / "state.json").read_text())
    rewritten(begun, {"state.json": json.dumps(BAD_STATES[kind](state)).encode()})
    with pytest.raises(StorageError, match=r"checkpoint.*--fresh"):
        run(plain().experiment, begun)


@pytest.mark.parametrize("name", ["state.json", "manifest.json"])
def test_deeply_nested_json_in_a_checkpoint_is_one_sentence(begun: Path, name: str) -> None:
    rewritten(begun, {"state.json": b'{"a":' * 100_000})
    (saved,) = (begun / "checkpoint").iterdir()
    if name == "manifest.json":
        (saved / name).write_bytes(b"[" * 100_000)
    with pytest.raises(StorageError, match=r"no checkpoint in .* can be read .*--fresh"):
        run(plain().experiment, begun)


def test_a_checkpoint_of_whole_numbers_is_refused(begun: Path) -> None:
    saved = checkpoint.load(begun / "checkpoint")
    assert saved is not None
    whole = {name: value.long() for name, value in saved.tensors["model"].items()}
    rewritten(begun, {"model.safetensors": to_safetensors(whole)})
    with pytest.raises(StorageError, match=r"whole numbers \(torch\.int64\) as E1\.0\.bias"):
        run(plain().experiment, begun)


def test_folders_with_odd_names_beside_checkpoints_and_models_are_left_alone(begun: Path, tmp_path: Path) -> None:
    for name in ("round-\u00b2", "round-\u0665", "round-", "round-1", "round--0000001"):
        (begun / "checkpoint" / name).mkdir()
        (begun / "models").mkdir(exist_ok=True)
        (begun / "models" / f"{name}.safetensors").write_bytes(b"")
    run(plain().experiment, begun)
    run(plain().experiment, tmp_path / "whole")
    assert outcome(begun) == outcome(tmp_path / "whole")
    assert set(kept(begun)) == {1}


def spoiled_folders(good: Path, root: Path) -> int:
    """Copies of a good run, each with something that no run has; how many."""
    changes: list[Callable[[Path], object]] = [
        lambda folder: (folder / "experiment.json").write_bytes(b"[" * 100_000),
        lambda folder: (folder / "rounds.jsonl").write_bytes(b'{"a":' * 100_000 + b"\n"),
        lambda folder: ((folder / "experiment.json").unlink(), os.mkfifo(folder / "experiment.json")),
        lambda folder: ((folder / "rounds.jsonl").unlink(), os.mkfifo(folder / "rounds.jsonl")),
        lambda folder: ((folder / "experiment.json").unlink(), (folder / "experiment.json").symlink_to("/dev/zero")),
        lambda folder: ((folder / "experiment.json").unlink(), (folder / "experiment.json").mkdir()),
    ]
    for number, change in enumerate(changes):
        change(Path(shutil.copytree(good, root / f"spoiled {number}")))
    return len(changes)


def test_a_report_shows_the_good_run_beside_spoiled_ones_and_odd_names(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    run(plain().experiment, root / "good")
    spoiled = spoiled_folders(root / "good", root)
    half = shutil.copytree(root / "good", root / os.fsdecode(b"odd \xff\x1b[31m\nname"))
    (half / "summary.json").unlink()
    os.mkfifo(half / "summary.json")
    found = collect([root])
    assert {one.path.name[:4] for one in found.runs} == {"good", "odd "}
    assert len([problem for problem in found.problems if "left out" in problem]) == spoiled
    assert all(problem.isprintable() for problem in found.problems)
    written = write_report([root], tmp_path / "report")
    assert "\x1b" not in written[0].read_text()
