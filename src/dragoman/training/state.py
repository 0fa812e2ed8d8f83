"""What a resumed run needs beside the weights: optimiser, random states, place in the data, the best so far (Section 5)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dragoman.errors import DragomanError


@dataclass
class Progress:
    """Where a training stands. ``position`` counts the updates of the current epoch that are done; ``seconds`` the time spent.

    ``measure`` says what ``best`` is a number of, for numbers of different measures cannot be compared; ``bfloat16`` whether the matrix
    products are in that type.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    target_tokens: int = 0
    best: tuple[float, float] | None = None
    measure: str = ""
    best_step: int = 0
    evaluations_since_best: int = 0
    bfloat16: bool = False

    def __post_init__(self) -> None:
        if self.best is not None:
            first, second = self.best  # a list, when it was read from JSON
            self.best = (first, second)


def save_state(
    folder: Path,
    progress: Progress,
    optimizer: torch.optim.Optimizer,
    facts: dict[str, str],
    trained: Mapping[str, Tensor],
    *,
    device: torch.device,
) -> None:
    """Writes folder/state: the progress, the optimiser's moments and the random states of the CPU and of ``device``.

    ``facts`` names what must not change. ``trained`` holds the weights that training goes on with, where the folder's own are their
    moving average.
    """
    state = folder / "state"
    state.mkdir()
    tensors = {f"random.{name}": values for name, values in _random_states(device).items()}
    tensors |= {f"trained.{name}": weight.contiguous().cpu() for name, weight in trained.items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value.detach().cpu() for name, value in moments.items()}
    (state / "tensors.safetensors").write_bytes(save(tensors))
    (state / "progress.json").write_text(json.dumps({"progress": asdict(progress), "facts": facts}, indent=1) + "\n", encoding="utf-8")


def load_state(
    folder: Path, optimizer: torch.optim.Optimizer, model: nn.Module, *, device: torch.device
) -> tuple[Progress, dict[str, str]]:
    """Restores the optimiser, the random states and the model's trained weights from folder/state; returns the progress and the facts.

    The weights stay as they are where the folder's own are those that were trained.

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
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors and device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], device)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise DragomanError(f"{state}: no whole training state to resume from ({error}); start a new run") from None
    return progress, facts


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
