"""Steps in bfloat16 as single calls (`kernels`), on a CPU where Numba is installed and PyTorch has Intel's library in it.

Shapes:  B sentences   S source positions   K hypotheses of each   N = B·K rows   H heads   w = d_k or d_v   D = d_model   F = d_ff
         V target vocabulary   k tokens of each row
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.decoding.caches import Seen, has_kernels
from dragoman.decoding.decoder_layers import PlainLayer, PlainLayers
from dragoman.decoding.matrices import ByItself
from dragoman.decoding.products import bias_of
from dragoman.model.layers import DecoderLayer
from dragoman.model.linear import Linear
from dragoman.model.transformer import Decoder

_LANES = 16  # numbers that the kernels take at once
_TOGETHER = 128  # rows of which the logits are made at once
_LIBRARY = "libtorch_cpu.so"
_PRODUCT = "cblas_gemm_bf16bf16f32"


@cache
def product_address() -> int | None:
    """Where the product of matrices in bfloat16 lies that is summed up in float32; None where there is none, or no Numba."""
    path = Path(torch.__file__).parent / "lib" / _LIBRARY
    if not has_kernels() or not path.exists():
        return None
    product = getattr(ctypes.CDLL(str(path)), _PRODUCT, None)
    return None if product is None else ctypes.cast(product, ctypes.c_void_p).value


def goes_fused(weight: Tensor) -> bool:
    """Whether the kernels take an output matrix (V, D) in bfloat16."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or weight.size(1) % _LANES:
        return False
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() and product_address() is not None


class FusedLayers:
    """Decoder layers as in the paper, or with their norms before the sub-layers, and a norm behind them: a step is one call."""

    def __init__(
        self, layers: Sequence[DecoderLayer], plain: Sequence[PlainLayer], *, pre_norm: bool, final_norm: nn.LayerNorm | None
    ) -> None:
        first = layers[0].self_attn
        self.sizes = first.n_heads, first.d_k, first.d_v
        self.inner, self.pre_norm = _linear(layers[0].feed_forward, 0).out_features, pre_norm
        self.epsilons = plain[0].epsilon, 0.0 if final_norm is None else final_norm.eps
        self._held: list[Tensor] = []  # what the addresses are of
        rows = [self._addresses(layer, each.norms) for layer, each in zip(layers, plain, strict=True)]
        last = [] if final_norm is None else [self._hold(each.detach()) for each in (final_norm.weight, final_norm.bias)]
        rows.append(last + [0] * (len(rows[0]) - len(last)))
        self._weights = np.array(rows, np.int64)

    def __deepcopy__(self, known: dict[int, Any]) -> "FusedLayers":
        """Itself, which never changes."""
        return self

    def _hold(self, numbers: Tensor) -> int:
        self._held.append(numbers.contiguous())
        return self._held[-1].data_ptr()

    def _addresses(self, layer: DecoderLayer, norms: Sequence[Tensor]) -> list[int]:
        own, cross = layer.self_attn, layer.cross_attn
        groups = (own.w_q, own.w_k, own.w_v), (own.w_concat,), (cross.w_q,), (cross.w_concat,)
        feed_forward = [(_linear(layer.feed_forward, place),) for place in (0, 2)]
        found: list[int] = []
        for group in (*groups, *feed_forward):
            found.append(self._hold(torch.cat([each.weight.detach() for each in group]).t().bfloat16()))
            found.append(self._hold(torch.cat([bias_of(each) for each in group])))
        return found + [self._hold(each) for each in norms]

    def __call__(
        self, x: Tensor, own: Sequence[Seen], memory: Sequence[Seen], mask: Tensor | None, source_mask: Tensor, start: int
    ) -> Tensor:
        """x (N, D) of the new positions, whose keys and values become those of own from ``start`` on; returns (N, D), normed.

        mask (B or 1, 1, K or 1, T) and source_mask (B, 1, K, S) are 0, or -∞ at what is unseen.
        """
        from dragoman.decoding import kernels

        x = x.contiguous()
        sentences = len(own[0].keys)
        hypotheses, seen = len(x) // sentences, start + len(x) // sentences
        if mask is None:
            mask = x.new_zeros(1, 1, 1, seen)
        kept = np.array([[each.data_ptr() for pair in pairs for each in pair] for pairs in zip(own, memory, strict=True)], np.int64)
        (heads, keys, values), rows, width = self.sizes, len(x), x.size(1)
        wide = np.empty(rows * max(heads * (2 * keys + values), self.inner), np.float32)
        narrow = np.empty(rows * max(width, heads * values, self.inner), np.uint16)
        room = np.empty(max(seen, memory[0].keys.size(2)) + _LANES + keys, np.float32)
        kernels.step_layers(
            cast(int, product_address()), x.data_ptr(), self._weights, kept, _steps(own[0]), _steps(memory[0]),
            (mask.data_ptr(), source_mask.data_ptr()), (_mask_steps(mask), _mask_steps(source_mask)),
            (sentences, hypotheses, heads, keys, values, width, self.inner), start, memory[0].keys.size(2), self.epsilons, self.pre_norm,
            wide, narrow, room,
        )  # fmt: skip
        return x


def fused_layers(decoder: Decoder, layers: Any, output: Tensor) -> FusedLayers | None:
    """A decoder's layers, which `PlainLayers` take, with its last norm; None where kernels do not take them or the output matrix."""
    norm = decoder.final_norm
    if not isinstance(layers, ByItself) or not isinstance(layers.module, PlainLayers) or not goes_fused(output):
        return None
    if type(norm) is not nn.Identity and (type(norm) is not nn.LayerNorm or norm.weight is None or norm.bias is None):
        return None
    made = cast("list[DecoderLayer]", list(decoder.layers))
    own, plain = made[0].self_attn, layers.module
    if any(width % _LANES for width in (own.d_k, own.d_v, _linear(made[0].feed_forward, 0).out_features)):
        return None
    return FusedLayers(made, plain.layers, pre_norm=plain.pre_norm, final_norm=norm if isinstance(norm, nn.LayerNorm) else None)


def chosen_tokens(
    hidden: Tensor, matrix: Tensor, bias: Tensor | None, number: int, never: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids (N, number) of the most probable tokens after hidden states (N, D), by a matrix (D, V) in bfloat16 and a
    bias (V), falling, without stretches of ids that may ``never`` follow.
    """
    from dragoman.decoding import kernels

    rows, (width, vocabulary) = hidden.to(torch.bfloat16), matrix.shape
    wide = np.empty(min(len(hidden), _TOGETHER) * vocabulary, np.float32)
    log_probs, tokens = np.empty((len(hidden), number), np.float32), np.empty((len(hidden), number), np.int64)
    kernels.choose(
        cast(int, product_address()), rows.data_ptr(), matrix.data_ptr(), 0 if bias is None else bias.data_ptr(),
        np.array(never, np.int64).reshape(-1, 2), log_probs, tokens, width, vocabulary, wide,
    )  # fmt: skip
    return torch.from_numpy(log_probs), torch.from_numpy(tokens)


def _linear(feed_forward: nn.Module, place: int) -> Linear:
    return cast(Linear, cast(nn.Sequential, feed_forward)[place])


def _steps(seen: Seen) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """From one sentence, head and position to the next, of keys and of values."""
    return seen.keys.stride()[:3], seen.values.stride()[:3]


def _mask_steps(mask: Tensor) -> tuple[int, int]:
    """From one sentence and hypothesis to the next, none where it is for all."""
    return mask.stride(0) if mask.size(0) > 1 else 0, mask.stride(2) if mask.size(2) > 1 else 0
