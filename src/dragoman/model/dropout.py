"""Dropout (Section 5.4), drawn fast where PyTorch draws slowly.

Shapes:  any
"""

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
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
        keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - 32768
        return x * keep.to(x.dtype).mul_(65536 / (65536 - dropped))

    def extra_repr(self) -> str:
        """For print(model)."""
        return f"p={self.p}"


def as_module(dropout: float | nn.Module) -> nn.Module:
    """A probability as PyTorch's own dropout; a module as it is."""
    return dropout if isinstance(dropout, nn.Module) else nn.Dropout(dropout)
