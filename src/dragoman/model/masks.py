"""Masks (Section 3.2.3): which query may attend to which key.

Shapes:  B batch   H heads   Tq, Tk query and key positions   S source positions
One convention everywhere: boolean, True where a query may attend to a key, broadcastable to (B, H, Tq, Tk).
"""

import torch
from torch import Tensor


def causal_mask(length: int, *, past: int = 0, device: torch.device | None = None) -> Tensor:
    """Each of ``length`` new positions sees the ``past`` ones, itself and those between, never a later one (3.2.3).

    Returns (length, past + length).
    """
    return torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)  # §3.2.3 causal = nothing later


def padding_mask(source_mask: Tensor) -> Tensor:
    """Attention mask (B, 1, 1, S) of a batch's token mask (B, S), True at tokens and False at padding."""
    return as_boolean(source_mask)[:, None, None, :]  # (B, 1, 1, S)


def as_boolean(mask: Tensor) -> Tensor:
    """The mask as booleans; ones and zeros are taken as True and False.

    Raises ValueError for any other number: an additive mask of 0 and -inf would mean the opposite.
    """
    if mask.dtype == torch.bool:
        return mask
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError(
            "a mask is boolean, or ones (may attend) and zeros (may not); an additive mask must be turned into one with `mask == 0`"
        )
    return mask != 0
