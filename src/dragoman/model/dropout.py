"""Dropout (Section 5.4), drawn fast where PyTorch draws slowly.

Shapes:  any
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FastDropout(nn.Module):
    """While training, zeroes each number with probability p and divides the others by 1 - p; otherwise the identity.

    On a CPU four 16-bit decisions come from each 64-bit draw, so p is met to 1/65536, and the division is by the probability as met.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as x."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        dropped = min(round(self.p * 65536), 65535)
        words: Tensor = torch.ops.dragoman.random_words(x.detach())
        keep = words.view(x.shape).ge_(dropped - 32768).to(x.dtype)  # ones and zeros
        return x * keep.mul_(65536 / (65536 - dropped))  # §5.4 dropped = x ⊙ kept / (1 - P_drop)

    def extra_repr(self) -> str:
        """For print(model)."""
        return f"p={self.p}"


def _random_words(x: Tensor) -> Tensor:
    """As many words of 16 random bits as x has numbers, int16; NumPy draws them faster than PyTorch, from a seed that PyTorch draws."""
    seed = int(torch.empty((), dtype=torch.int64).random_())
    count = x.numel()
    return torch.from_numpy(np.random.PCG64(seed).random_raw(-(-count // 4)).view(np.int16)[:count])


_OPERATORS = torch.library.Library("dragoman", "DEF")  # type: ignore[no-untyped-call]
"""What torch.compile calls as it is, for it reads NumPy's words wrongly. It takes x so that two calls are not taken for one and the same;
the tag is PyTorch's for operators that draw."""

_OPERATORS.define("random_words(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))  # type: ignore[no-untyped-call]
_OPERATORS.impl("random_words", _random_words, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("dragoman::random_words", lambda x: x.new_empty(x.numel(), dtype=torch.int16), lib=_OPERATORS)


def as_module(dropout: float | nn.Module) -> nn.Module:
    """A probability as PyTorch's own dropout; a module as it is."""
    return dropout if isinstance(dropout, nn.Module) else nn.Dropout(dropout)
