"""In which type the matrix products of a step are computed: the paper's float32, bfloat16 where that is faster, or float16."""

import time
from dataclasses import dataclass
from functools import lru_cache

import torch

from dragoman.config import Config, ModelConfig
from dragoman.errors import UsageError
from dragoman.model.layers import FeedForward
from dragoman.model.linear import ROWS

_ROUNDS = 5
_MOST_ROWS, _PRODUCTS = 2048, 2**26  # as in training, and fewer for wide models, for which a few show enough
_FASTER, _SLOWER = 0.8, 2.0  # of float32's time, so that a choice does not hang on noise
_IMITATED = 20.0  # what a processor without the type needs: there one measurement is enough
_TENSOR_CORES = (7, 0)  # the first GPUs on which float16 is faster

DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The types by the names that training.precision and run.json have for them."""

SMALLEST_SCALE = 2.0**-14
_DOUBLE_AFTER = 2000


def compute_dtype(config: Config, device: torch.device, *, before: torch.dtype | None = None) -> torch.dtype:
    """As training.precision asks; auto is bfloat16 on a GPU that has it and on a CPU where it is measured to be faster for this width.

    On a GPU that is fast in float16 only, auto is that. ``before`` is what a run that goes on has computed in: on a CPU it stays, unless
    it is bfloat16 and takes twice the time of float32 here, on another machine. Raises UsageError for float16 elsewhere than on such a GPU.
    """
    precision = config.training.precision
    if precision == "fp16" and device.type != "cuda":
        raise UsageError(
            f"training.precision=fp16 is for GPUs that are computed on through cuda, and this is {device}; give auto, fp32 or bf16, which "
            "is as narrow and needs no scaled loss"
        )
    if precision != "auto":
        return DTYPES[precision]
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16
        return torch.float16 if torch.cuda.get_device_capability(device) >= _TENSOR_CORES else torch.float32
    if device.type != "cpu" or before == torch.float32:
        return torch.float32
    if config.model.architecture == "recurrent":  # whose many small products stay in float32 in any case
        return torch.float32
    limit = _FASTER if before is None else _SLOWER
    return torch.bfloat16 if bfloat16_time(config.model.d_model, _inner_width(config.model)) < limit else torch.float32


def _inner_width(model: ModelConfig) -> int:
    return model.kernel_width * model.d_model if model.architecture == "convolutional" else model.d_ff


@dataclass
class LossScale:
    """What the loss is multiplied by in float16, so that small gradients are not rounded to zero, and updates since it last changed.

    PyTorch's own scaler does the same (and has these numbers), but asks each rank for itself whether a gradient is too large. Here the
    norm decides, which is that of all ranks.
    """

    scale: float = 2.0**16
    good: int = 0

    def take(self, *, finite: bool) -> None:
        """Halves after an update whose gradient was no number, doubles after 2000 in a row that were fine."""
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.good == _DOUBLE_AFTER:
            self.scale, self.good = 2 * self.scale, 0


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
