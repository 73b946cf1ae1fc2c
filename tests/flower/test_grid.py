"""The engine over a grid: the same bits as on one machine, and no node, however bad, can stop a round."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flower.flower_grid import MemoryGrid
from progfed import Personal, Scaffold
from progfed.codec import Dither, Fitted, Quantize, Sparsify
from progfed.engines.local import LocalEngine
from progfed.errors import DataError, TrainingError, UsageError
from progfed.flower.apps import (
    HOLDERS,
    SIZES,
    client,
    known_sizes,
    noting,
    read_numbers,
    read_sizes,
    server_app,
    simulation,
)
from progfed.flower.grid import GRACE, GridEngine, Patience
from progfed.flower.node import client_app, clients_of
from progfed.flower.wire import pack_update, unpack_update
from progfed.recipe.privacy import Privacy
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.train import Setup, train
from progfed.schedule import end_to_end, progressive
from progfed.server.loop import Round, federate
from progfed.wire.engine import Update
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe

RUN = "ab" * 8
QUICK = Patience(deadline=0.2, start=0.2, answer=0.2, poll=0.001)
LOSSY: dict[str, Any] = {"schedule": progressive(4, stages=2, warmup=1), "up": Quantize(8)}
THREE = {
    77: {"partition-id": 2, "num-partitions": 3},
    11: {"partition-id": 0, "num-partitions": 3},
    55: {"partition-id": 1, "num-partitions": 3},
}


@pytest.fixture(autouse=True)
def _in_a_run() -> Iterator[None]:
    """Flower makes messages only inside a run."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    yield
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None


def recipe(**changes: Any) -> Recipe:
    return tiny_recipe(**{**LOSSY, **changes})


def grid_of(wanted: Recipe, settings: dict[int, dict[str, Any]] | None = None, **options: Any) -> MemoryGrid:
    def make(settings: Mapping[str, Any]) -> Setup:
        return Setup(tiny_model(), tiny_data(), wanted, RUN)

    return MemoryGrid(client_app(make, **options), settings or THREE)


def rounds(wanted: Recipe, engine: Any) -> list[Round]:
    return list(federate(tiny_model(), tiny_data().sizes, wanted, engine, run_id=RUN))


def local(wanted: Recipe) -> list[Round]:
    return rounds(wanted, LocalEngine(tiny_model(), tiny_data(), wanted, run_id=RUN))


def same(one: list[Round], two: list[Round]) -> bool:
    return all(
        a.progress.params.keys() == b.progress.params.keys()
        and all(torch.equal(value, b.progress.params[name]) for name, value in a.progress.params.items())
        and (a.cost.down_bytes, a.cost.up_bytes, a.rejected) == (b.cost.down_bytes, b.cost.up_bytes, b.rejected)
        for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"feedback": True, "up": Sparsify(25)},
        {"feedback": True, "delta": True, "down": Quantize(8)},
        {"base": "start", "down": Dither(1.5), "up": Dither(3)},
        {"bytes": 0.9, "down": Fitted(8), "up": Fitted(8)},
        {"feedback": True, "local": Local(batch=4, momentum=0.9, keep_momentum=True)},
        {"local": Local(batch=4, optimizer=torch.optim.AdamW, steps=2)},
        {"method": Personal(Scaffold("LQ-8")), "delta": True, "down": Quantize(8), "feedback": True},
    ],
    ids=[
        "lq-8",
        "sp-25 with error feedback",
        "changes down, lq-8 and error feedback up",
        "changes since the start, dithered",
        "within a budget of bytes",
        "momentum that is kept",
        "AdamW",
        "personal heads and control variates, changes down",
    ],
)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory in Flower's state", "memory on disk"])
def test_a_grid_gives_the_bits_and_bytes_of_one_machine(changes: dict[str, Any], on_disk: bool, tmp_path: Path) -> None:
    wanted = recipe(**changes)
    grid = grid_of(wanted, memory=tmp_path if on_disk else None)
    assert same(local(wanted), rounds(wanted, GridEngine(grid, QUICK)))
    assert all(bool(context.state) != on_disk for context in grid.contexts.values() if wanted.feedback)


def test_the_counted_payload_is_what_flower_has_carried() -> None:
    wanted = recipe()
    grid = grid_of(wanted)
    done = rounds(wanted, GridEngine(grid, QUICK))
    for messages, counted in (
        (grid.pushed, sum(r.cost.down_bytes for r in done)),
        (grid.replied, sum(r.cost.up_bytes for r in done)),
    ):
        records = [record for message in messages for record in message.content.array_records.values()]
        assert sum(record.count_bytes() - len("message") for record in records) == counted


def test_clients_are_found_by_asking_and_never_by_the_position_of_a_node() -> None:
    grid = grid_of(recipe(), {9: {"clients": "0,5"}, 4: {"clients": "1,2"}, 6: {"clients": "4,3"}})
    assert same(local(recipe()), rounds(recipe(), GridEngine(grid, QUICK)))
    for message in grid.pushed:
        if message.metadata.message_type.startswith("train"):
            client = message.content["progfed.fields"]["client"]
            assert message.metadata.dst_node_id == {0: 9, 5: 9, 1: 4, 2: 4, 4: 6, 3: 6}[client]


def test_a_node_says_how_many_examples_its_clients_have() -> None:
    assert GridEngine(grid_of(recipe()), QUICK).sizes(6) == {0: 5, 1: 6, 2: 7, 3: 8, 4: 9, 5: 10}


def failing(message: Message, reply: Message) -> list[Any]:
    return [Message(Error(code=1, reason="out of memory"), reply_to=message)]


def silent(message: Message, reply: Message) -> list[Any]:
    return []


def twice(message: Message, reply: Message) -> list[Any]:
    return [reply, reply]


def garbage(message: Message, reply: Message) -> list[Any]:
    return [Message(pack_update(Update(unpack_update(reply.content).client, b"garbage")), reply_to=message)]


def nothing(message: Message, reply: Message) -> list[Any]:
    return [Message(RecordDict(), reply_to=message)]


def unreadable(message: Message, reply: Message) -> list[Any]:
    return [ValueError("an object that Flower cannot read")]


def too_long(message: Message, reply: Message) -> list[Any]:
    return [OverflowError("a reply of more bytes than it can need")]


def impostor(message: Message, reply: Message) -> list[Any]:
    update = unpack_update(reply.content)
    altered = bytearray(update.message)
    altered[16:24] = (0).to_bytes(8, "little")
    return [Message(pack_update(Update(0, bytes(altered))), reply_to=message)]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (failing, "missing"),
        (silent, "missing"),
        (unreadable, "length"),
        (too_long, "length"),
        (twice, "unexpected"),
        (garbage, "length"),
        (nothing, "length"),
        (impostor, "client"),
    ],
)
def test_a_node_that_misbehaves_is_counted_and_the_run_goes_on(behaviour: Any, reason: str) -> None:
    wanted = recipe(cohort=6)
    grid = grid_of(wanted)
    grid.behaviour[55] = behaviour
    done = rounds(wanted, GridEngine(grid, QUICK))
    assert [r.rejected for r in done] == [{reason: 2}] * len(done)
    assert [r.clients for r in done] == [6 if behaviour is twice else 4] * len(done)


def coloured(message: Message, reply: Message) -> list[Any]:
    return [Message(Error(code=1, reason="\x1b]0;gone\x07\n" + 10**6 * "x"), reply_to=message)]


def coloured_inside(message: Message, reply: Message) -> list[Any]:
    return [ValueError("\x1b[2J" + 10**6 * "x")]


@pytest.mark.parametrize("behaviour", [coloured, coloured_inside])
def test_what_a_node_says_about_its_failure_reaches_no_terminal_as_it_is(
    behaviour: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = recipe(cohort=6, schedule=end_to_end(1, stages=2))
    grid = grid_of(wanted)
    grid.behaviour[55] = behaviour
    with caplog.at_level("WARNING", logger="progfed.flower"):
        rounds(wanted, GridEngine(grid, QUICK))
    said = [record.getMessage() for record in caplog.records]
    assert said
    assert all(line.isprintable() and len(line) < 1000 for line in said)


def test_a_client_that_answers_twice_changes_nothing() -> None:
    wanted = recipe(cohort=6)
    grid = grid_of(wanted)
    grid.behaviour = dict.fromkeys(THREE, twice)
    twofold, once = rounds(wanted, GridEngine(grid, QUICK)), local(wanted)
    assert all(
        torch.equal(a.progress.params[name], value)
        for a, b in zip(twofold, once, strict=True)
        for name, value in b.progress.params.items()
    )


def test_a_late_reply_is_missed_in_its_round_and_disturbs_no_other() -> None:
    wanted = recipe(cohort=6)
    grid = grid_of(wanted)
    kept: list[tuple[str, Message]] = []

    def late(message: Message, reply: Message) -> list[Message]:
        del grid.behaviour[55]
        kept.append((message.metadata.message_id, reply))
        return []

    grid.behaviour[55] = late
    done = []
    for one in federate(tiny_model(), tiny_data().sizes, wanted, GridEngine(grid, QUICK), run_id=RUN):
        done.append(one)
        for key, reply in kept:
            grid.deliver_late(key, reply)
    assert kept
    assert [r.rejected for r in done] == [{"missing": 1}, {}, {}, {}, {}]
    assert [r.clients for r in done] == [5, 6, 6, 6, 6]


def test_a_task_expires_with_its_round() -> None:
    grid = grid_of(recipe())
    rounds(recipe(), GridEngine(grid, QUICK))
    tasks = [message for message in grid.pushed if message.metadata.message_type.startswith("train")]
    assert all(GRACE < message.metadata.ttl <= QUICK.deadline + GRACE for message in tasks)


@pytest.mark.parametrize("deadline", [0.05, 1000.0])
def test_a_round_waits_for_the_shorter_of_the_engines_patience_and_the_recipes_deadline(deadline: float) -> None:
    wanted = recipe(cohort=6, deadline=deadline, schedule=end_to_end(1, stages=2))
    grid = grid_of(wanted)
    grid.behaviour[55] = silent
    engine = GridEngine(grid, QUICK.within(wanted.deadline))
    assert [r.rejected for r in rounds(wanted, engine)] == [{"missing": 2}]
    tasks = [message for message in grid.pushed if message.metadata.message_type.startswith("train")]
    assert {message.metadata.ttl <= min(deadline, QUICK.deadline) + GRACE for message in tasks} == {True}


def test_a_server_app_hands_its_loop_an_engine_that_keeps_the_recipes_deadline() -> None:
    heard: list[float] = []
    server = server_app(lambda engine, settings: heard.append(engine._patience.deadline), deadline=7.0)
    for chosen in ({}, {"deadline": 5.0}, {"deadline": 90.0}):
        context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=chosen)
        server(grid=grid_of(recipe()), context=context)  # type: ignore[arg-type]
    assert heard == [7.0, 5.0, 7.0]


def test_the_simulation_keeps_the_recipes_deadline(tmp_path: Path) -> None:
    made = simulation(tiny_experiment(recipe=recipe(deadline=7.0)), tmp_path, tmp_path, workers=2)
    assert made.keywords["patience"].deadline == 7.0  # type: ignore[attr-defined]


def test_clients_that_ask_for_a_whole_model_have_no_more_time_than_the_others() -> None:
    wanted = recipe(cohort=6, delta=True, down=Quantize(8), schedule=end_to_end(3, stages=2))
    grid = grid_of(wanted)
    engine = GridEngine(grid, QUICK)
    for one in federate(tiny_model(), tiny_data().sizes, wanted, engine, run_id=RUN):
        if one.number == 2:
            grid.contexts[77].state.clear()
            grid.behaviour[55] = silent  # the others ask again when the time of the round is over
    assert one.rejected == {"missing": 4}


def test_reserves_stand_in_for_the_clients_of_a_silent_node() -> None:
    wanted = recipe(cohort=4, over_selection=1.5)
    grid = grid_of(wanted)
    grid.behaviour[55] = silent
    done = rounds(wanted, GridEngine(grid, QUICK))
    assert [(r.clients, r.rejected) for r in done] == [(4, {"missing": 2})] * len(done)


def test_too_few_valid_updates_end_the_run_with_the_reasons() -> None:
    wanted = recipe(cohort=6, min_updates=5)
    grid = grid_of(wanted)
    grid.behaviour[55] = garbage
    with pytest.raises(TrainingError, match=r"round 1: 4 of 6 updates were valid, 5 needed \(2 length"):
        rounds(wanted, GridEngine(grid, QUICK))


def test_a_reply_for_another_stage_is_rejected() -> None:
    wanted = recipe(cohort=6)
    grid = grid_of(wanted)
    stored: dict[int, Message] = {}

    def replay(message: Message, reply: Message) -> list[Message]:
        client = unpack_update(reply.content).client
        old = stored.setdefault(client, reply)
        return [Message(old.content, reply_to=message)]

    grid.behaviour[11] = replay
    done = rounds(wanted, GridEngine(grid, QUICK))
    assert done[0].rejected == {}
    assert {reason for r in done[1:] for reason in r.rejected} == {"stage"}


def test_a_node_that_goes_offline_is_missed_and_one_that_comes_back_is_used_again() -> None:
    wanted = recipe(cohort=6)
    grid = grid_of(wanted)
    seen = []
    for one in federate(tiny_model(), tiny_data().sizes, wanted, GridEngine(grid, QUICK), run_id=RUN):
        seen.append(one.rejected)
        grid.offline = {77} if one.number in (1, 2) else set()
    assert seen == [{}, {"missing": 2}, {"missing": 2}, {}, {}]


def test_a_client_that_lost_its_memory_asks_for_a_whole_model_and_trains() -> None:
    wanted = recipe(cohort=6, delta=True, down=Quantize(8))
    grid = grid_of(wanted)
    # both answers count against one deadline, so it must not depend on how fast this machine is today
    engine = GridEngine(grid, replace(QUICK, deadline=60.0))
    for one in federate(tiny_model(), tiny_data().sizes, wanted, engine, run_id=RUN):
        assert one.rejected == {}
        if one.number == 3:
            usual = one.cost.down_bytes
            grid.contexts[77].state.clear()
        if one.number == 4:
            assert one.cost.down_bytes > usual


def test_a_round_that_is_repeated_after_a_crash_of_the_server_gives_the_same_bits(tmp_path: Path) -> None:
    wanted = recipe(cohort=6, feedback=True, delta=True, down=Quantize(8))
    grid = grid_of(wanted, memory=tmp_path)
    whole = rounds(wanted, GridEngine(grid, QUICK))
    for committed in range(1, 5):
        folder = tmp_path / str(committed)
        first = grid_of(wanted, memory=folder)
        engine = GridEngine(first, QUICK)
        for one in federate(tiny_model(), tiny_data().sizes, wanted, engine, run_id=RUN):
            if one.number == committed:
                saved = one.progress
            if one.number == committed + 1:  # trained, but not committed: the server is killed here
                break
        again = grid_of(wanted, memory=folder)
        rest = federate(tiny_model(), tiny_data().sizes, wanted, GridEngine(again, QUICK), run_id=RUN, start=saved)
        assert same(whole[committed:], list(rest))


def test_a_node_that_does_not_even_say_what_it_holds_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("progfed.flower.grid.SILENT", 10**6)
    wanted = recipe(cohort=6)
    grid = grid_of(wanted)
    grid.mute = {55}
    done = rounds(wanted, GridEngine(grid, QUICK))
    assert [r.rejected for r in done] == [{"missing": 2}] * len(done)
    assert sum(message.metadata.dst_node_id == 55 for message in grid.pushed) == 1


def test_messages_that_flower_does_not_take_are_missed_and_not_taken_for_others() -> None:
    wanted = recipe(cohort=6)
    grid = grid_of(wanted)
    grid.refused = {55}
    engine = GridEngine(grid, QUICK)
    engine.sizes(6)
    grid.refusing = True
    done = list(federate(tiny_model(), tiny_data().sizes, wanted, engine, run_id=RUN))
    assert [r.rejected for r in done] == [{"missing": 2}] * len(done)


def never(message: Message, reply: Message) -> list[Any]:
    """Announces a reply whose content never comes."""
    return [threading.Event()]


def test_a_reply_whose_content_never_comes_keeps_no_other_waiting_and_misses_the_deadline() -> None:
    wanted = recipe(cohort=6)
    grid = grid_of(wanted)
    grid.behaviour[55] = never
    done = rounds(wanted, GridEngine(grid, replace(QUICK, deadline=1.0)))
    assert [(r.clients, r.rejected) for r in done] == [(4, {"missing": 2})] * len(done)
    assert not grid.given_up


def test_a_node_whose_first_answer_never_comes_does_not_keep_the_others_from_starting() -> None:
    grid = grid_of(recipe(), {**THREE, 99: {"clients": "0"}})
    grid.stuck = {99}
    assert set(GridEngine(grid, replace(QUICK, answer=60.0)).sizes(6)) == set(range(6))
    assert not grid.given_up


@pytest.mark.parametrize(("status", "gone"), [(404, False), (500, False), (401, True)])
def test_a_reply_that_the_superlink_refuses_to_hand_out_is_that_replys_fault_alone(status: int, gone: bool) -> None:
    wanted = recipe(cohort=6)
    grid = grid_of(wanted)
    request = httpx.Request("POST", "https://superlink")
    error = httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))
    grid.behaviour[55] = lambda message, reply: [error]  # type: ignore[list-item]
    if gone:
        with pytest.raises(httpx.HTTPStatusError):
            rounds(wanted, GridEngine(grid, QUICK))
    else:
        assert {r.clients for r in rounds(wanted, GridEngine(grid, QUICK))} == {4}


def test_a_client_stays_with_the_node_that_held_it_first_even_while_that_is_away() -> None:
    wanted = recipe(cohort=6)
    grid = grid_of(wanted, {**THREE, 99: {"clients": "0,1,2,3,4,5"}})
    grid.offline = {99}
    engine, seen = GridEngine(grid, QUICK), []
    for one in federate(tiny_model(), tiny_data().sizes, wanted, engine, run_id=RUN):
        seen.append(one.rejected)
        grid.offline = {77} if one.number == 1 else set()  # the greedy node comes when another has gone
    assert seen == [{}, {"missing": 2}, {}, {}, {}]
    assert engine.holders == {0: 11, 3: 11, 1: 55, 4: 55, 2: 77, 5: 77}
    assert 99 not in {m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type.startswith("train")}


def test_a_run_that_continues_knows_which_node_held_a_client_first(tmp_path: Path) -> None:
    first = GridEngine(grid_of(recipe()), QUICK)
    first.sizes(6)
    with noting(first, tmp_path, []):
        pass
    again = GridEngine(grid_of(recipe(), {99: {"clients": "0,1,2,3,4,5"}, **THREE}), QUICK)
    again.holders |= read_numbers(tmp_path / HOLDERS)
    again.sizes(6)
    assert 99 not in again.holders.values()


def test_impossible_numbers_of_a_node_are_neither_used_nor_kept(tmp_path: Path) -> None:
    grid = grid_of(recipe())
    grid.says[55] = '{"1": -1, "4": 9223372036854775808}'
    with pytest.raises(TrainingError, match="2 of 6 are missing"):
        known_sizes(GridEngine(grid, QUICK), tmp_path, tmp_path, 6)
    grid.says[55] = '{"1": 5, "6": 5, "4000000": 5}'
    engine = GridEngine(grid, QUICK)
    engine.sizes(6)
    assert set(engine.holders) == {0, 1, 2, 3, 5}
    grid.says[55] = "[" * 10**5
    assert set(GridEngine(grid, QUICK).sizes(6)) == {0, 2, 3, 5}


def test_no_nodes_at_all_is_an_error_that_says_what_to_look_at() -> None:
    grid = grid_of(recipe())
    grid.offline = set(THREE)
    with pytest.raises(TrainingError, match=r"6 of 6 are missing.*--node-config"):
        GridEngine(grid, QUICK).sizes(6)


def test_a_population_that_is_not_complete_is_waited_for_where_it_must_be() -> None:
    grid = grid_of(recipe())
    grid.offline = {55}
    assert set(GridEngine(grid, QUICK).sizes(6)) == {0, 2, 3, 5}
    with pytest.raises(TrainingError, match="2 of 6 are missing"):
        GridEngine(grid, QUICK).sizes(6, all_needed=True)


def test_a_client_that_two_nodes_claim_stays_where_it_was_found() -> None:
    grid = grid_of(recipe(cohort=6), {1: {"clients": "0,1,2,3"}, 2: {"clients": "3,4,5"}})
    assert same(local(recipe(cohort=6)), rounds(recipe(cohort=6), GridEngine(grid, QUICK)))


def test_the_numbers_that_a_run_was_told_are_kept_in_its_folder_and_not_in_the_data(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    for folder in (data, out):
        folder.mkdir()
    (data / SIZES).write_text('{"0": 1, "1": 1, "2": 1, "3": 1, "4": 1, "5": 1}')  # of another run
    engine = GridEngine(grid_of(recipe()), QUICK)
    with noting(engine, out, known_sizes(engine, out, data, 6)):
        assert read_sizes(out / SIZES, 6) == list(tiny_data().sizes)
    (out / SIZES).write_text('{"0": 2, "1": 2, "2": 2, "3": 2, "4": 2, "5": 2}')
    assert known_sizes(engine, out, data, 6) == [2] * 6


def test_a_run_of_an_earlier_version_finds_its_numbers_in_the_data(tmp_path: Path) -> None:
    (tmp_path / "experiment.json").touch()
    (tmp_path / SIZES).write_text('{"0": 5, "1": 6, "2": 7}')
    engine = GridEngine(grid_of(recipe()), QUICK)
    assert known_sizes(engine, tmp_path / "run", tmp_path, 6) == list(tiny_data().sizes)
    assert known_sizes(engine, tmp_path, tmp_path, 3) == [5, 6, 7]
    with pytest.raises(DataError, match=rf"{SIZES} does not tell the examples of 4 clients"):
        known_sizes(engine, tmp_path, tmp_path, 4)


@pytest.mark.parametrize(
    "settings", [{}, {"partition-id": 1}, {"clients": "one"}, {"clients": "6"}, {"clients": "-1"}], ids=str
)
def test_a_node_without_usable_settings_is_told_what_it_needs(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="node"):
        clients_of(settings, 6)


@pytest.mark.parametrize("partitions", range(1, 8))
def test_partitions_share_out_all_clients_once(partitions: int) -> None:
    shares = [clients_of({"partition-id": p, "num-partitions": partitions}, 7) for p in range(partitions)]
    assert sorted(client for share in shares for client in share) == list(range(7))


@pytest.mark.parametrize("secret", ["", "9c1f83e07a4b5d6210c4e8f7b3a29d51"], ids=["made by the run", "given"])
def test_nodes_train_with_privacy_without_knowing_the_servers_secret(tmp_path: Path, secret: str) -> None:
    on_nodes = tiny_experiment(recipe=recipe(weighting="uniform", privacy=Privacy(clip=1.0, noise=0.5)))
    on_server = replace(on_nodes, recipe=replace(on_nodes.recipe, privacy=Privacy(clip=1.0, noise=0.5, secret=secret)))
    engine = GridEngine(MemoryGrid(client(on_nodes), THREE), QUICK)
    done = list(train(on_server, tmp_path, data=tmp_path, engine=lambda: nullcontext(engine)))
    assert [record["rejected"] for record in done] == [{}] * 5
    assert {record["clients"] for record in done} == {3}
