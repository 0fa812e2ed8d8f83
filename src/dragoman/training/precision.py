"""In which type the matrix products of a step are computed: the paper's float32, or bfloat16 where that is faster."""

import time
from functools import lru_cache

import torch

from dragoman.config import Config
from dragoman.model.layers import FeedForward
from dragoman.model.linear import ROWS

_ROUNDS = 5
_MOST_ROWS, _PRODUCTS = 2048, 2**26  # as in training, and fewer for wide models, for which a few show enough
_FASTER, _SLOWER = 0.8, 2.0  # of float32's time, so that a choice does not hang on noise
_IMITATED = 20.0  # what a processor without the type needs: there one measurement is enough


def compute_dtype(config: Config, device: torch.device, *, before: torch.dtype | None = None) -> torch.dtype:
    """As training.precision asks; auto is bfloat16 on a GPU that has it and on a CPU where it is measured to be faster for this width.

    ``before`` is what a run that goes on has computed in: on a CPU it stays, unless it is bfloat16 and slower than float32 here, on
    another machine.
    """
    precision = config.training.precision
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    if device.type != "cpu" or before == torch.float32:
        return torch.float32
    limit = _FASTER if before is None else _SLOWER
    return torch.bfloat16 if bfloat16_time(config.model.d_model, config.model.d_ff) < limit else torch.float32


@lru_cache
def bfloat16_time(d_model: int, d_ff: int) -> float:
    """The time that a feed-forward network's loss and gradients take on this CPU in bfloat16, as a multiple of float32's.

    Measured once, in a second or so, and in a few for the widest.
    """
    with torch.random.fork_rng(devices=[]):
        network = FeedForward(d_model, d_ff)
        rows = min(_MOST_ROWS, max(ROWS, _PRODUCTS // (d_model * d_ff)))
        x = torch.randn(rows, d_model, requires_grad=True)
        best = {True: float("inf"), False: float("inf")}
        for _ in range(1 + _ROUNDS):  # the first of each is slower, and never the best
            for narrow in best:
                began = time.perf_counter()
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
                    network(x).sum().backward()
                best[narrow] = min(best[narrow], time.perf_counter() - began)
            if best[True] > _IMITATED * best[False]:
                break
    return best[True] / best[False]
