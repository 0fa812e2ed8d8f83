"""What a resumed run needs beside the weights: optimiser, random states, place in the data, the best so far (Section 5)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dragoman.config import TrainingConfig
from dragoman.errors import DragomanError
from dragoman.files import write_file
from dragoman.training.distributed import seed_rank
from dragoman.training.precision import LossScale
from dragoman.training.sharding import own_moments
from dragoman.training.totals import Totals

_SUMS = (0, 5, len(fields(Totals)))  # of `Totals`: none, those of a run begun before there were alignments, all


class Plan(NamedTuple):
    """What the updates of an epoch are a function of: the budget of a batch, the batches of an update, the seed of their order."""

    batch_tokens: int = 0
    accumulate: int = 0
    seed: int = 0

    @classmethod
    def of(cls, training: TrainingConfig) -> "Plan":
        """The plan of these settings."""
        return cls(training.batch_budget, training.accumulate, training.seed)


_UNKNOWN = Plan()  # of a run that an older version began


@dataclass
class Progress:
    """Where a training stands. ``position`` counts the updates of the current epoch that are done by the ``plan``; ``earlier`` has those
    that were done in this epoch by plans before it, in order; ``seconds`` is the time spent.

    ``measure`` says what ``best`` is a number of, for numbers of different measures cannot be compared; ``bfloat16`` whether the matrix
    products are in that type; ``scale`` is that of the loss in float16; ``unreported`` has the sums over the updates since the last record
    in the log. ``owed`` says that the evaluation of this step is still to be made.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    plan: Plan = _UNKNOWN
    earlier: tuple[tuple[Plan, int], ...] = ()
    seconds: float = 0.0
    target_tokens: int = 0
    best: tuple[float, float] | None = None
    measure: str = ""
    best_step: int = 0
    evaluations_since_best: int = 0
    bfloat16: bool = False
    unreported: tuple[float, ...] = ()
    owed: bool = False
    scale: LossScale = field(default_factory=LossScale)

    def __post_init__(self) -> None:
        if self.best is not None:
            first, second = self.best  # a list, when it was read from JSON
            self.best = (first, second)
        self.unreported = tuple(self.unreported)
        self.plan = Plan(*self.plan)
        self.earlier = tuple((Plan(*plan), updates) for plan, updates in self.earlier)
        if isinstance(self.scale, dict):
            self.scale = LossScale(**self.scale)
        self._check()

    def go_on_by(self, plan: Plan) -> None:
        """Counts by this plan from here on; what the epoch has seen stays seen."""
        if self.position and self.plan not in (plan, _UNKNOWN):
            self.earlier += ((self.plan, self.position),)
            self.position = 0
        self.plan = plan

    def reach(self, epoch: int, position: int) -> None:
        """Stands behind an update of an epoch, this one or the next."""
        if epoch != self.epoch:
            self.earlier = ()
        self.epoch, self.position = epoch, position

    def _check(self) -> None:
        """Raises ValueError for what a damaged file may hold, so that it is refused when it is read and not met in the middle of a step."""
        counts = (
            self.step, self.epoch, self.position, self.target_tokens, self.best_step, self.evaluations_since_best, *self.plan,
            *(count for plan, updates in self.earlier for count in (*plan, updates)),
        )  # fmt: skip
        numbers = (self.seconds, *(self.best or ()), *self.unreported)
        if not all(isinstance(each, int) and each >= 0 for each in counts) or not all(isinstance(each, int | float) for each in numbers):
            raise ValueError("what should be numbers is something else")
        if not isinstance(self.owed, bool):
            raise ValueError("what should be true or false is something else")
        if len(self.unreported) not in _SUMS or not isinstance(self.scale, LossScale):
            raise ValueError("the sums or the scale of the loss are not whole")


def save_state(
    folder: Path,
    progress: Progress,
    moments: Mapping[int, Mapping[str, Tensor]],
    facts: dict[str, str],
    trained: Mapping[str, Tensor],
    *,
    device: torch.device,
    others: Sequence[Mapping[str, Tensor]] = (),
) -> None:
    """Writes folder/state: the progress, the optimiser's ``moments`` and the random states of the CPU and of ``device``.

    ``facts`` names what must not change. ``trained`` holds the weights that training goes on with, where the folder's own are their
    moving average. ``others`` are the random states of the ranks after the first.
    """
    state = folder / "state"
    state.mkdir()
    tensors = {f"random.{name}": values for name, values in random_states(device).items()}
    for rank, states in enumerate(others, start=1):
        tensors |= {f"random.{name}.{rank}": values for name, values in states.items()}
    tensors |= {f"trained.{name}": weight.contiguous().cpu() for name, weight in trained.items()}
    for index, own in moments.items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in own.items()}
    (state / "tensors.safetensors").write_bytes(save(tensors))
    (state / "progress.json").write_text(_told(progress, facts), encoding="utf-8", newline="\n")


def save_progress(folder: Path, progress: Progress, facts: dict[str, str]) -> None:
    """Replaces the progress in a checkpoint's state, so that a reader finds the old one or the new; DragomanError when the disk refuses."""
    write_file(folder / "state" / "progress.json", _told(progress, facts))


def _told(progress: Progress, facts: dict[str, str]) -> str:
    return json.dumps({"progress": asdict(progress), "facts": facts}, indent=1) + "\n"


def load_state(
    folder: Path, optimizer: torch.optim.Optimizer, model: nn.Module, *, device: torch.device, rank: int = 0, seed: int = 0
) -> tuple[Progress, dict[str, str]]:
    """Restores the optimiser, the random states and the model's trained weights from folder/state; returns the progress and the facts.

    The weights stay as they are where the folder's own are those that were trained. A rank that was not there when it was written draws
    from the seed, its number and the step.

    Raises DragomanError when the folder holds no whole state.
    """
    state = folder / "state"
    try:
        document = json.loads((state / "progress.json").read_bytes())
        tensors = load((state / "tensors.safetensors").read_bytes())
        progress, facts = Progress(**document["progress"]), dict(document["facts"])
        moments: dict[int, dict[str, Tensor]] = {}
        parameters = dict(model.named_parameters())
        for name, value in tensors.items():
            if name.startswith("trained."):
                parameters[name.removeprefix("trained.")].data.copy_(value)
            if name.startswith("optimizer."):
                _, index, moment = name.split(".")
                moments.setdefault(int(index), {})[moment] = value
        optimizer.load_state_dict({"state": own_moments(moments, optimizer), "param_groups": optimizer.state_dict()["param_groups"]})
        own = f".{rank}" if rank else ""
        if rank and f"random.cpu{own}" not in tensors:
            seed_rank(seed, rank=rank, step=progress.step)
        else:
            torch.set_rng_state(tensors[f"random.cpu{own}"])
            if f"random.cuda{own}" in tensors and device.type == "cuda":
                torch.cuda.set_rng_state(tensors[f"random.cuda{own}"], device)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise DragomanError(f"{state}: no whole training state to resume from ({error}); start a new run") from None
    return progress, facts


def random_states(device: torch.device) -> dict[str, Tensor]:
    """What the random numbers of the CPU and of ``device`` go on from, as bytes."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
