"""Embeddings and positions (Sections 3.4 and 3.5).

Shapes:  B batch   T positions   D = d_model   V vocabulary
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Module):
    """Token embeddings multiplied by √d_model (3.4), and the pre-softmax transformation by the same matrix.

    ``weight`` (V, D) starts as N(0, 1/√d_model), with a row of zeros for ``pad``, as in the authors' code. Without ``scaled``, a named
    departure, nothing is multiplied.
    """

    def __init__(self, vocabulary: int, d_model: int, *, pad: int, scaled: bool = True) -> None:
        super().__init__()
        self.pad = pad
        self.scale = math.sqrt(d_model) if scaled else 1.0
        self.weight = nn.Parameter(torch.empty(vocabulary, d_model))
        self.reset()

    def reset(self) -> None:
        """Draw the starting values."""
        nn.init.normal_(self.weight, std=self.weight.size(1) ** -0.5)
        with torch.no_grad():
            self.weight[self.pad].zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) of ids; returns (B, T, D)."""
        embedded = F.embedding(tokens, self.weight)  # §3.4 rows = E[token]
        return embedded if self.scale == 1 else embedded * self.scale  # §3.4 embedded = E[token] · √d_model

    def logits(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """hidden (…, D) against every row of the matrix; returns (…, V). A ``bias`` (V,) is a named departure."""
        return F.linear(hidden, self.weight, bias)  # §3.4 logits = x Eᵀ


def sinusoids(length: int, d_model: int, *, concatenated: bool = False, base: float = 10_000) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)), Section 3.5.

    ``concatenated`` places all sines before all cosines, as some published models do; ``base`` takes the place of 10000. Computed in
    float64; returns float32 (length, D).
    Raises ValueError for an odd d_model.
    """
    if d_model % 2:
        raise ValueError(f"d_model={d_model} must be even for sinusoidal positions, which come in pairs of sine and cosine")
    position = torch.arange(length, dtype=torch.float64, device="cpu")[:, None]  # (T, 1)
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model  # (D/2)
    angles = position / base**exponent  # (T, D/2) §3.5 angles = pos / 10000^(2i/d_model)
    pairs = torch.stack((angles.sin(), angles.cos()), dim=1 if concatenated else 2)  # (T, 2, D/2) or (T, D/2, 2)
    return pairs.flatten(1).float()  # (T, D) §3.5 encoding = sin, cos of the angles


class PositionalEncoding(nn.Module):
    """Adds the sinusoids of Section 3.5 to embeddings; the table ``pe`` (1, max_len, D) is not a parameter, and no bundle stores it."""

    pe: Tensor

    def __init__(self, d_model: int, max_len: int = 5000, *, concatenated: bool = False) -> None:
        super().__init__()
        self.register_buffer("pe", sinusoids(max_len, d_model, concatenated=concatenated)[None])  # (1, max_len, D)

    def forward(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        """x (B, T, D) at positions start, start + 1, …, where start may be one for each row (B,).

        Raises ValueError beyond the last position of the table.
        """
        return x + _positions(self.pe[0], start, x.size(1))  # §3.5 summed = x + PE


class LearnedPositions(nn.Module):
    """Adds learned positions to embeddings (Table 3, row E)."""

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        """x (B, T, D) at positions start, start + 1, …, where start may be one for each row (B,).

        Raises ValueError beyond the last position of the table.
        """
        return x + _positions(cast(Tensor, self.weight), start, x.size(1))  # §3.5 summed = x + learned positions


class NoPositions(nn.Module):
    """Embeddings as they are, where attention itself sees positions (`RotaryPositions`)."""

    def forward(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        """x (B, T, D) itself."""
        return x


class RotaryPositions(nn.Module):
    """Rotates the pairs of a head by angles that grow with the position: a named departure from the sums of Section 3.5.

    Numbers 2i and 2i + 1 of a query or key at position pos turn by pos / 10000^(2i/K), the angles of the paper's sinusoids, so that the
    product of a query and a key depends on their distance alone; ``base`` takes the place of 10000. The table is not a parameter and is
    not saved.
    """

    pe: Tensor

    def __init__(self, d_k: int, max_len: int, *, base: float = 10_000) -> None:
        super().__init__()
        self.register_buffer("pe", sinusoids(max_len, d_k, base=base), persistent=False)  # (max_len, K)

    def forward(self, heads: Tensor, start: int | Tensor = 0) -> Tensor:
        """heads (B, H, T, K) at positions start, start + 1, …, where start may be one for each row (B,); computed in float32 at least.

        Raises ValueError beyond the last position of the table.
        """
        table = _positions(self.pe, start, heads.size(2))  # (T, K) or (B, T, K)
        if table.dim() == 3:
            table = table[:, None]  # (B, 1, T, K)
        sine, cosine = table[..., 0::2], table[..., 1::2]  # (…, T, K/2)
        pairs = heads.to(torch.promote_types(heads.dtype, torch.float32)).reshape(*heads.shape[:-1], -1, 2)  # (B, H, T, K/2, 2)
        even, odd = pairs.unbind(-1)  # (B, H, T, K/2)
        turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1)  # (B, H, T, K/2, 2) §3.5 turned = rotated pairs
        return turned.flatten(-2).to(heads.dtype)  # (B, H, T, K)


def _positions(table: Tensor, start: int | Tensor, length: int) -> Tensor:
    """Rows start, start + 1, … of the table: (T, D), or (B, T, D) of a start for each row; what is before 0 is padding and gets row 0."""
    last = (start if isinstance(start, int) else int(start.max())) + length
    if last > table.size(0):
        raise ValueError(f"a sequence of {last} positions exceeds the model's {table.size(0)}; split it, or raise max_positions")
    if isinstance(start, int):
        return table[start:last]  # (T, D)
    places = start.reshape(-1, 1) + torch.arange(length, device=start.device)  # (B, T), or (1, T) of one start for all
    return table[places.clamp(min=0)]  # (B, T, D)
