"""An exponential moving average of the weights while they are trained: a named departure from the mean of checkpoints (Section 6.1)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """After each update the average moves to d · average + (1 - d) · weight; a shared weight is averaged once.

    d is ``decay``, or (1 + step) / (10 + step) where that is less, so that the random start is soon forgotten.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.parameters = dict(model.named_parameters())
        self.average = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes in the weights after the update of that step, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, parameter in self.parameters.items():
            self.average[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[Mapping[str, Tensor]]:
        """Inside, the model has the average for its weights; gives the weights that are trained."""
        self._exchange()
        try:
            yield self.average
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for name, parameter in self.parameters.items():
            parameter.data, self.average[name] = self.average[name], parameter.data
