"""What a model costs: operations as PyTorch counts them, bytes as they are, Tables 1 and 2 (Sections 4 and 6.1)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dragoman.config import Config, ModelConfig
from dragoman.explain.cost import (
    SUSTAINED_TFLOPS,
    cache_bytes,
    convolutional_cost,
    decoding_flops,
    forward_flops,
    forward_work,
    operations_of_pair,
    paper_flops,
    recurrent_cost,
    restricted_cost,
    self_attention_cost,
    training_bytes,
    training_flops,
)
from dragoman.model import EncoderDecoder, LanguageModel, MaskedLanguageModel, build_model
from dragoman.model.attention import ScaledDotProductAttention
from dragoman.presets import count_parameters, resolve_config

SIZES: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "source_vocabulary": 50, "target_vocabulary": 50, "dropout": 0.0,
}  # fmt: skip
TRANSFORMER = {"d_ff": 48, "n_heads": 4}
CONVOLUTIONAL = {"architecture": "convolutional", "positions": "learned", "scale_embedding": False}
ONE_STACK = {"decoder-only": {"encoder_layers": 6}, "encoder-only": {"decoder_layers": 6}}  # as by default, for it means nothing
KINDS: dict[str, dict[str, Any]] = {
    "paper": TRANSFORMER,
    "odd widths": TRANSFORMER | {"d_k": 16, "d_v": 4},
    "grouped heads": TRANSFORMER | {"kv_heads": 2, "qk_norm": True, "positions": "rotary"},
    "swiglu": TRANSFORMER | {"activation": "swiglu"},
    "untied": TRANSFORMER | {"tie": "none", "output_bias": True, "norm_place": "pre"},
    "decoder-only": TRANSFORMER | {"architecture": "decoder-only", "kv_heads": 1} | ONE_STACK["decoder-only"],
    "encoder-only": TRANSFORMER | {"architecture": "encoder-only", "output_transform": True} | ONE_STACK["encoder-only"],
    "lstm": {"architecture": "recurrent"},
    "gru": {"architecture": "recurrent", "cell": "gru", "decoder_layers": 3},
    "convolutional": CONVOLUTIONAL,
    "wide kernel": CONVOLUTIONAL | {"kernel_width": 5},
}
SOURCE, TARGET, PAIRS = 11, 7, 2
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def config_of(kind: dict[str, Any]) -> ModelConfig:
    return Config().with_values(model=SIZES | kind).model


def built(config: ModelConfig) -> Any:
    """The model with attention by the equation, for the counter does not know every kernel."""
    model = build_model(config, seed=1).train()
    for layer in model.modules():
        for name, child in list(layer.named_children()):
            if type(child).__name__ == "FusedAttention":
                setattr(layer, name, ScaledDotProductAttention())
    return model


pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")


@pytest.fixture(autouse=True)
def visible() -> Iterator[None]:
    """oneDNN computes an LSTM's layer as one operation, in which the counter sees nothing."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def logits_of(model: Any) -> Tensor:
    """For pairs without padding."""
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, 50, (PAIRS, length), generator=generator) for length in (SOURCE, TARGET))
    if isinstance(model, EncoderDecoder):
        return model(source, target, torch.ones(PAIRS, SOURCE, dtype=torch.bool))
    assert isinstance(model, LanguageModel | MaskedLanguageModel)
    return model(target)


@every_kind
def test_operations_are_those_that_pytorch_counts(kind: dict[str, Any]) -> None:
    config = config_of(kind)
    model = built(config)
    with FlopCounterMode(display=False) as forward:
        logits = logits_of(model)
    with FlopCounterMode(display=False) as backward:
        logits.square().sum().backward()
    expected = PAIRS * forward_flops(config, source=SOURCE, target=TARGET)
    assert forward.get_total_flops() == expected
    # What no gradient flows to, such as a recurrent layer's first state, saves a product.
    assert forward.get_total_flops() + backward.get_total_flops() == pytest.approx(3 * expected, rel=0.02)
    assert training_flops(config, source=SOURCE, target=TARGET) * PAIRS == 3 * expected


@pytest.mark.parametrize("name", [name for name in KINDS if name != "encoder-only"])
def test_decoding_with_a_cache_takes_what_pytorch_counts(name: str) -> None:
    config = config_of(KINDS[name])
    model = built(config).eval()
    tokens = torch.randint(4, 50, (1, TARGET))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        if isinstance(model, EncoderDecoder):
            source, mask = torch.randint(4, 50, (1, SOURCE)), torch.ones(1, SOURCE, dtype=torch.bool)
            cache: Any = model.start(model.encode(source, mask), mask)
        else:
            cache = model.start()
        for token in tokens.split(1, 1):
            hidden, cache = model.step(token, cache)
            model.project(hidden)
    assert counter.get_total_flops() == decoding_flops(config, source=SOURCE, target=TARGET)
    assert storage_of(cache) == cache_bytes(config, source=SOURCE, target=TARGET) + mask_bytes(cache)


def tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value if isinstance(value, tuple) else vars(value).values() if hasattr(value, "__dict__") else []
    return [tensor for part in parts for tensor in tensors_of(part)]


def storage_of(cache: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(cache))


def mask_bytes(cache: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(cache) if tensor.dtype == torch.bool)


@every_kind
def test_parameters_and_bytes_are_those_of_the_model(kind: dict[str, Any]) -> None:
    config = config_of(kind)
    weights = sum(weight.nbytes for weight in build_model(config).parameters())
    assert weights == 4 * count_parameters(config)
    training = Config().training
    assert training_bytes(config, training) == (weights, weights, 2 * weights, 0)
    assert training_bytes(config, training.model_copy(update={"ema": 0.9})).total == 5 * weights


def test_operations_of_a_pair_are_those_of_its_training_step() -> None:
    for kind in KINDS.values():
        if kind.get("architecture") in ONE_STACK:
            continue
        config = config_of(kind)
        assert sum(operations_of_pair(config, 9)) == training_flops(config, source=9, target=9)


def test_the_base_model_by_hand() -> None:
    base = resolve_config("base").model
    attention, feed_forward = 4 * 512 * 512, 2 * 512 * 2048
    work = forward_work(base)
    assert work.source == 6 * (attention + feed_forward) + 6 * 2 * 512 * 512  # and the memory's keys and values
    assert work.target == 6 * (attention + 2 * 512 * 512 + feed_forward) + 512 * 40_960
    assert (work.source_pairs, work.between, work.target_pairs) == (6 * 1024, 6 * 1024, 6 * 1024)
    assert forward_flops(base, source=1, target=0) == 2 * (work.source + work.source_pairs)


def test_heads_do_not_change_the_operations() -> None:
    flops = {
        heads: forward_flops(resolve_config("base").with_values(model={"n_heads": heads}).model, source=20, target=20)
        for heads in (1, 8, 32)
    }
    assert len(set(flops.values())) == 1


# Table 1


def test_table_1() -> None:
    n, d, k, r = 70, 512, 3, 32
    assert self_attention_cost(n, d) == (n * n * d, 1, 1)
    assert recurrent_cost(n, d) == (n * d * d, n, n)
    assert convolutional_cost(9, d, 3) == (3 * 9 * d * d, 1, pytest.approx(2))  # log_3(9)
    assert convolutional_cost(n, d, k, dilated=False).path == n / k
    assert restricted_cost(n, d, r) == (r * n * d, 1, n / r)
    assert self_attention_cost(n, d).operations < recurrent_cost(n, d).operations  # n < d, as Section 4 says
    assert self_attention_cost(d, d).operations == recurrent_cost(d, d).operations
    assert convolutional_cost(n, d, k).operations == k * recurrent_cost(n, d).operations


@pytest.mark.parametrize(("kind", "growth"), [("paper", 4), ("lstm", 2), ("convolutional", 2)])
def test_what_grows_with_n_in_a_model_is_what_table_1_says(kind: str, growth: int) -> None:
    """Of an encoder alone: twice the length is 2² times attention's own operations, and twice those of the others."""
    work = forward_work(config_of(KINDS[kind]))

    def own(n: int) -> int:
        return work.source_pairs * n * n or work.source * n

    assert own(200) == growth * own(100)


# Table 2


@pytest.mark.parametrize(("hours", "golden", "printed"), [(12, 3.283e18, "3.3e+18"), (84, 2.298e19, "2.3e+19")], ids=["base", "big"])
def test_the_training_cost_of_table_2(hours: float, golden: float, printed: str) -> None:
    flops = paper_flops(hours=hours, gpus=8, tflops=SUSTAINED_TFLOPS["P100"])
    assert flops == pytest.approx(golden, rel=2e-4)
    assert f"{flops:.1e}" == printed


def test_the_weights_on_disk_are_the_parameters(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    config = config_of(KINDS["lstm"])
    save_file(
        {name: weight.detach().contiguous() for name, weight in build_model(config).named_parameters()}, tmp_path / "model.safetensors"
    )
    assert sum(weight.nbytes for weight in load_file(tmp_path / "model.safetensors").values()) == 4 * count_parameters(config)
