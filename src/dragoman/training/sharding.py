"""A model that does not fit on one device: each rank keeps a part of every weight, of its gradient and of its moments (FSDP2).

Each layer's weights are gathered from all ranks when it is their turn, forward and backward; those outside of the layers, the embeddings,
stay gathered during a step. What is written to disk is whole, so that a run goes on with any number of ranks.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.bundle import Bundle
from dragoman.config import TrainingConfig
from dragoman.errors import UsageError
from dragoman.model import Transformer
from dragoman.ranks import answered
from dragoman.training.loss import GuidedLoss, Loss

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_VIEWS = "FSDP2-wrapped module .* returned a view tensor"  # heads of keys and values, which nothing changes in place


def check_sharding(training: TrainingConfig, *, ranks: int) -> None:
    """UsageError for a model that should be shared out among processes where there is one."""
    if training.shard and ranks == 1:
        raise UsageError(
            "training.shard=true shares the model out among processes, and this is one; start it with `torchrun --nproc-per-node N -m "
            "dragoman train ...`, or leave it out"
        )


class ShardedModel:
    """The model of a bundle shared out among all ranks. Whatever is asked of it must be asked by each of them.

    ``measure`` is ``loss`` of the model with the weights that it needs gathered. Every rank must call it equally often.
    """

    def __init__(self, bundle: Bundle, loss: Callable[..., Loss | GuidedLoss], *, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # not above: some builds of PyTorch have none, and it takes time
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        warnings.filterwarnings("ignore", message=_VIEWS)
        self.device, self.first = device, dist.get_rank() == 0
        self._whole = replace(bundle, model=deepcopy(bundle.model)) if self.first else bundle
        self.model = bundle.encoder_decoder
        if not isinstance(self.model, Transformer):
            raise UsageError("training.shard=true shares out the layers of Transformers; leave it out for this model")
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in (*self.model.encoder.layers, *self.model.decoder.layers):
            fully_shard(layer, mesh=mesh)
        for layer in self.model.decoder.layers:
            register_fsdp_forward_method(layer, "start")
        self.measure = cast(Callable[..., Loss | GuidedLoss], fully_shard(_WithLoss(self.model, loss), mesh=mesh))

    @contextmanager
    def gathered(self) -> Iterator[Bundle]:
        """The bundle with the whole model, for the first rank, and on the device while the block runs; the others have nothing of it."""
        whole = dict(self._whole.model.named_parameters()) if self.first else {}
        for name, parameter in self.model.named_parameters():
            with answered():
                weight = whole_tensor(parameter.detach())
            if self.first:
                whole[name].data.copy_(weight)
        if not self.first:
            yield self._whole
            return
        self._whole.model.to(self.device)
        try:
            yield self._whole
        finally:
            self._whole.model.to("cpu")


class _WithLoss(nn.Module):
    """The model and what is computed of it, as one module: inside, the embeddings are whole too."""

    def __init__(self, model: nn.Module, loss: Callable[..., Loss | GuidedLoss]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *values: Any, **named: Any) -> Loss | GuidedLoss:
        return self.loss(*values, **named)


def whole_tensor(value: Tensor) -> Tensor:
    """A tensor of which each rank has a part, gathered from all; any other as it is."""
    return cast("DTensor", value).full_tensor() if hasattr(value, "full_tensor") else value


def whole_moments(optimizer: torch.optim.Optimizer, *, keep: bool) -> dict[int, dict[str, Tensor]]:
    """What an optimiser has gathered, by the number of the parameter, whole and on the CPU; nothing but the work without ``keep``."""
    moments: dict[int, dict[str, Tensor]] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            with answered():
                gathered = whole_tensor(value.detach())
            if keep:
                moments.setdefault(index, {})[name] = gathered.cpu()
    return moments


def own_moments(moments: Mapping[int, Mapping[str, Tensor]], optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Tensor]]:
    """Of whole moments, those that belong to what this rank has of each parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {index: {name: _own(value, parameters[index]) for name, value in state.items()} for index, state in moments.items()}


def _own(value: Tensor, parameter: Tensor) -> Tensor:
    if not hasattr(parameter, "full_tensor") or value.shape != parameter.shape:  # Adam's count of steps is one number everywhere
        return value
    from torch.distributed.tensor import distribute_tensor

    parameter = cast("DTensor", parameter)
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None)
