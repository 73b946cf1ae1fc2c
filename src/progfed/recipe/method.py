"""What clients do in local training beside taking plain steps: the seam for SCAFFOLD, FedDyn, personal heads, …

A method is a value in a recipe. Its client side is `train`: a few lines that read like the algorithm of a paper, with
a `Visit` in hand. Its server side is a transform of the mean update, in front of the recipe's server optimizer. In
between it says which tensors travel beside the model and beside the update, and which of the model's tensors never
leave a client. Everything that it keeps is tensors by name, so a checkpoint, a node and a message carry it as they
carry the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from progfed.codec import Codec, Float, Schema
from progfed.population import Examples, Held
from progfed.recipe.optimizers import State
from progfed.schedule import Phase
from progfed.tensors import Tensors

Pull = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""What is added to the gradients, given the parameters as they are before the step; names it leaves out are not."""


class Visit(Protocol):
    """One client's part of a round, as its method sees it.

    Attributes:
        client: The number of the client.
        round: The number of the round.
        phase: The phase of the schedule.
        lr: The learning rate of the round.
        module: The module that is trained, of which only what the phase trains requires gradients.
        params: The parameters that learn, by name, as they are at the moment; those that never leave the client, too.
        trained: Names and shapes of the parameters that learn and are sent back.
        start: The model as it came, by name. It is shared with other clients, so it must not be changed.
        sent: What came beside the model, by slot: `sent["c"]["E1.weight"]`.
        examples: The examples that the client trains on.
        test: The client's own test examples; None where the data have none.
        steps: How many steps were taken so far.
        rehearsal: Whether this is a visit on zeros, by which the memory of training is planned.
    """

    client: int
    round: int
    phase: Phase
    lr: float
    module: nn.Module
    params: Mapping[str, Tensor]
    trained: Schema
    start: Mapping[str, Tensor]
    sent: Mapping[str, Tensors]
    examples: Held
    rehearsal: bool

    @property
    def test(self) -> Held | None: ...

    @property
    def steps(self) -> int: ...

    def run(
        self,
        *,
        loss: Callable[..., Tensor] | None = None,
        pull: Pull | None = None,
        only: Callable[[str], bool] | None = None,
    ) -> None:
        """Local training as the recipe says: all epochs, with its optimizer, clipping and limits.

        Args:
            loss: Replaces the loss of the recipe: a function of outputs and targets. Where a phase has several heads,
                outputs are a tuple, the shallowest first.
            pull: What is added to the gradients of every step, after clipping, as FedProx's pull is.
            only: Which of the parameters learn, by name; no gradient of the others is computed.
        """
        ...

    def batches(self) -> Iterator[Examples]:
        """The batches of the round, for a loop of one's own: those of all epochs, up to the limit of steps.

        Every call goes through the same batches in the same order.
        """
        ...

    def learn(self, batch: Examples, *, loss: Callable[..., Tensor] | None = None, pull: Pull | None = None) -> Tensor:
        """Forward, backward and a step on one batch; returns the loss, which counts in the mean of the round."""
        ...

    def change(self) -> Tensors:
        """What training has changed so far of the parameters that are sent back."""
        ...

    def remembered(self, slot: str) -> Tensors:
        """What the client kept in a slot, for each of the `trained` names; zeros where it has kept nothing."""
        ...

    def kept(self, slot: str) -> Tensors:
        """All that the client kept in a slot, as it is; empty where it has kept nothing."""
        ...

    def keep(self, slot: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors for the client's next visit. Other names in the slot stay, while the model still has them."""
        ...

    def send(self, slot: str, tensors: Mapping[str, Tensor]) -> None:
        """Send tensors beside the update; the method's `up` has announced their names and shapes."""
        ...


@dataclass(frozen=True)
class Method:
    """Plain local training, and what to derive a method from: override what differs, as a frozen dataclass.

    A tensor that travels is named `slot/name`, such as `c/E1.weight`; slots begin with a small letter.
    """

    @property
    def codec(self) -> Codec:
        """How what travels beside model and update is encoded; model and update have the recipe's codecs."""
        return Float()

    def train(self, visit: Visit) -> None:
        """One client's local training: what it does, keeps and sends."""
        visit.run()

    def down(self, trained: Schema) -> Schema:
        """What travels beside the model: names and shapes, all of which are in the server's state.

        Args:
            trained: Names and shapes of the parameters that a phase trains and sends back.
        """
        return {}

    def up(self, trained: Schema) -> Schema:
        """What travels beside the update: names and shapes."""
        return {}

    def private(self, name: str) -> bool:
        """Whether a tensor of the model never leaves the clients: each keeps its own."""
        return False

    def init(self, params: Tensors) -> State:
        """The server's state for these parameters, by slot. At a growth, names that stay keep theirs."""
        return {}

    def update(self, mean: Tensors, state: State, shares: Mapping[str, float]) -> tuple[Tensors, State]:
        """What the server makes of the mean of a round, before its optimizer, and the next state.

        Args:
            mean: The mean of the updates, and of what came beside them under `slot/name`; what is returned has the
                names of parameters only.
            state: The state before.
            shares: For each name the share of the whole population whose updates had it.
        """
        return mean, state

    def scores(self, state: State) -> dict[str, float] | None:
        """The metrics of the last round, where clients have measured them; None: the server evaluates the model."""
        return None


PLAIN = Method()
"""Plain local training: what a recipe does without a method."""


@dataclass(frozen=True)
class Around(Method):
    """A method around another one: what a class derived from this does not override, the inner method does."""

    of: Method = PLAIN

    @property
    def codec(self) -> Codec:
        return self.of.codec

    def train(self, visit: Visit) -> None:
        self.of.train(visit)

    def down(self, trained: Schema) -> Schema:
        return self.of.down(trained)

    def up(self, trained: Schema) -> Schema:
        return self.of.up(trained)

    def private(self, name: str) -> bool:
        return self.of.private(name)

    def init(self, params: Tensors) -> State:
        return self.of.init(params)

    def update(self, mean: Tensors, state: State, shares: Mapping[str, float]) -> tuple[Tensors, State]:
        return self.of.update(mean, state, shares)

    def scores(self, state: State) -> dict[str, float] | None:
        return self.of.scores(state)


def slot(name: str, schema: Schema) -> Schema:
    """The schema of a slot with a tensor for each of these names.

    >>> slot("c", {"E1.weight": (2, 3)})
    {'c/E1.weight': (2, 3)}
    """
    return {f"{name}/{key}": shape for key, shape in schema.items()}
