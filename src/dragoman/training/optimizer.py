"""Adam as the paper uses it (Section 5.3), and its named departures AdamW and Muon."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from dragoman.config import TrainingConfig
from dragoman.errors import UsageError


def build_optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    """The optimiser of the settings; a shared weight is one parameter and gets one update. The rate is set before each step.

    Adam with β₁, β₂ and ε; AdamW with the same; or Muon for the matrices between embedding and output and AdamW for all else. Weights
    decay in matrices, embeddings included, and not in biases and norms. Raises UsageError where this PyTorch has no Muon.
    """
    check_optimizer(training.optimizer)
    if training.optimizer == "adam":
        return torch.optim.Adam(  # §5.3 adam = β₁, β₂, ε
            model.parameters(), lr=0.0, betas=(training.adam_beta1, training.adam_beta2), eps=training.adam_epsilon, fused=True
        )
    if training.optimizer == "adamw":
        return _adamw(model.parameters(), training)
    hidden = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    chosen = {id(weight) for weight in hidden}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    muon = torch.optim.Muon(hidden, lr=0.0, weight_decay=training.weight_decay, adjust_lr_fn="match_rms_adamw")
    return MuonAdamW(muon, _adamw(others, training))


def check_optimizer(name: str) -> None:
    """UsageError where this PyTorch lacks the optimiser."""
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        raise UsageError(
            f"training.optimizer=muon needs PyTorch 2.9 or newer, and this is {torch.__version__}; update torch, or set "
            "training.optimizer=adamw"
        )


class MuonAdamW(torch.optim.Optimizer):
    """Muon and AdamW, each with parameters of its own, as one optimiser: one list of groups, one state, one step."""

    def __init__(self, muon: torch.optim.Optimizer, adamw: torch.optim.Optimizer) -> None:
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self.parts = (muon, adamw)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter with a gradient."""
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The groups and the state that ``state_dict`` gave."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """PyTorch replaces an optimiser's groups and state when it loads them; the parts must see the new ones."""
        start = 0
        for part in self.parts:
            end = start + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[start:end], self.state
            start = end


def _adamw(parameters: Iterable[nn.Parameter], training: TrainingConfig) -> torch.optim.AdamW:
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in parameters:
        (decayed if parameter.dim() > 1 else others).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    betas = (training.adam_beta1, training.adam_beta2)
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=training.adam_epsilon, weight_decay=training.weight_decay, fused=True)
