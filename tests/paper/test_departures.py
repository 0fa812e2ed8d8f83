"""The model's named departures from Section 3, each against golden values or a formula written out again."""

import itertools
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import Config, ModelConfig
from dragoman.errors import UsageError
from dragoman.model import FeedForward, GatedFeedForward, MultiHeadAttention, RotaryPositions, Transformer, build_model, causal_mask
from dragoman.presets import count_parameters
from paper.models import SIZES, random_ids, random_numbers, small_model, token_mask

MASK = token_mask(3, 5)[:, None, None]  # (2, 1, 1, 5)


def close(actual: Tensor, expected: Tensor | list[float], tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=tolerance, rtol=0)


# Feed-forward


def test_gelu_is_the_exact_one_inside_equation_2() -> None:
    layer = small_model(activation="gelu").encoder.layers[0].feed_forward
    assert isinstance(layer, FeedForward)
    close(layer[1](torch.tensor([-1.0, 0.0, 1.0, 2.0, 2.7])), [-0.15865525, 0.0, 0.84134475, 1.95449974, 2.69063911], 1e-6)
    x = random_numbers(2, 3, 24)
    inner = x @ layer[0].weight.T + layer[0].bias
    inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
    close(layer(x), inner @ layer[2].weight.T + layer[2].bias)


def test_swiglu_is_a_swish_gate_of_the_same_width_times_a_linear_map() -> None:
    layer = small_model(activation="swiglu").decoder.layers[0].feed_forward
    assert isinstance(layer, GatedFeedForward)
    x = random_numbers(2, 3, 24)
    gate, linear = (x @ part.weight.T + part.bias for part in (layer.w_gate, layer.w_in))
    assert gate.shape == linear.shape == (2, 3, 40)
    close(layer(x), (gate / (1 + torch.exp(-gate)) * linear) @ layer.w_out.weight.T + layer.w_out.bias)


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_activation_dropout_acts_before_the_last_matrix(activation: str) -> None:
    model = small_model(activation=activation, activation_dropout=0.5, dropout=0.0)
    layer, seen = model.encoder.layers[0].feed_forward, []
    (dropout,) = (module for module in layer.modules() if hasattr(module, "p"))
    dropout.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    x = random_numbers(2, 3, 24)
    layer.train()(x)
    assert seen[0].shape == (2, 3, 40)
    assert 0 < (seen[0] == 0).sum() < seen[0].numel()
    layer.eval()
    assert torch.equal(layer(x), layer(x))


# Norms


def test_golden_rms_norm() -> None:
    """No mean is taken away, nothing is added; ε 1e-6 inside the root."""
    model = small_model(norm="rms", norm_place="pre", d_model=4, n_heads=1)
    norms = [module for module in model.modules() if isinstance(module, nn.RMSNorm)]
    assert len(norms) == 2 * 2 + 2 * 3 + 2
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    nn.init.ones_(norms[0].weight)
    close(norms[0].double()(torch.tensor([1, 2, 3, 4], dtype=torch.float64)), [0.36514835, 0.7302967, 1.09544505, 1.4605934], 1e-7)
    assert {norm.eps for norm in norms} == {1e-6}


@pytest.mark.parametrize(
    ("encoder_layers", "decoder_layers", "encoder", "decoder"),
    [(6, 6, (1.41793814, 0.49698924), (2.05976714, 0.34329452)), (3, 1, (1.06601995, 0.66105705), (1.31607401, 0.53728497))],
)
def test_deepnorm_weighs_the_input_by_alpha_and_starts_with_gain_beta(
    encoder_layers: int, decoder_layers: int, encoder: tuple[float, float], decoder: tuple[float, float]
) -> None:
    """N encoder and M decoder layers: α = 0.81 (N⁴M)^1/16, β = 0.87 (N⁴M)^-1/16; and (3M)^1/4, (12M)^-1/4."""
    sizes = SIZES | {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    deep = build_model(ModelConfig(**sizes, norm_place="deepnorm"), seed=1).eval()
    plain = build_model(ModelConfig(**sizes), seed=1)
    for (name, ours), theirs in zip(deep.named_parameters(), plain.parameters(), strict=True):
        scaled = ".weight" in name and any(part in name for part in ("w_v", "w_concat", "feed_forward"))
        beta = encoder[1] if name.startswith("encoder") else decoder[1]
        torch.testing.assert_close(ours, theirs * beta if scaled else theirs, atol=1e-7, rtol=1e-6)

    x, memory = random_numbers(2, 5, 24), random_numbers(2, 5, 24, seed=6)
    layer = deep.encoder.layers[-1]
    middle = layer.norm1(encoder[0] * x + layer.self_attn(x, x, x, MASK))
    close(layer(x, MASK), layer.norm2(encoder[0] * middle + layer.feed_forward(middle)))
    layer = deep.decoder.layers[-1]
    first = layer.norm1(decoder[0] * x + layer.self_attn(x, x, x, causal_mask(5)))
    second = layer.norm2(decoder[0] * first + layer.cross_attn(first, memory, memory, MASK))
    expected = layer.norm3(decoder[0] * second + layer.feed_forward(second))
    close(layer(x, layer.start(memory), causal_mask(5), MASK)[0], expected)
    assert isinstance(deep.encoder.final_norm, nn.Identity)


def test_deepnorm_leaves_a_gate_its_gain() -> None:
    deep, plain = (build_model(ModelConfig(**SIZES, activation="swiglu", norm_place=place), seed=1) for place in ("deepnorm", "post"))
    ours, theirs = deep.encoder.layers[0].feed_forward, plain.encoder.layers[0].feed_forward
    assert torch.equal(ours.w_gate.weight, theirs.w_gate.weight)
    assert not torch.equal(ours.w_in.weight, theirs.w_in.weight)


# Rotary positions


def test_golden_rotation() -> None:
    rotary = RotaryPositions(4, 8)
    heads = torch.tensor([1.0, 0.0, 0.0, 1.0]).expand(1, 1, 2, 4)
    golden = [[1, 0, 0, 1], [math.cos(1), math.sin(1), -math.sin(0.01), math.cos(0.01)]]
    close(rotary(heads)[0, 0], torch.tensor(golden))


def test_a_rotation_is_a_product_with_a_complex_number_of_length_one() -> None:
    heads = random_numbers(2, 3, 5, 6)
    angles = torch.arange(4, 9)[:, None] / 10_000 ** (torch.arange(3) / 3)  # positions 4 to 8
    turned = torch.view_as_complex(heads.unflatten(-1, (3, 2))) * torch.polar(torch.ones_like(angles), angles)
    close(RotaryPositions(6, 9)(heads, 4), torch.view_as_real(turned).flatten(-2))
    with pytest.raises(ValueError, match=r"10 positions exceeds the model's 9.*max_positions"):
        RotaryPositions(6, 9)(heads, 5)


def test_the_product_of_rotated_heads_depends_on_their_distance_alone() -> None:
    rotary, query, key = RotaryPositions(6, 600), random_numbers(1, 1, 1, 6), random_numbers(1, 1, 1, 6, seed=5)

    def product(query_place: int, key_place: int) -> float:
        return (rotary(query, query_place) * rotary(key, key_place)).sum().item()

    for distance in (0, 1, 7, 90):
        assert product(distance + 500, 500) == pytest.approx(product(distance, 0), abs=1e-4)
    assert product(1, 0) != pytest.approx(product(0, 1), abs=1e-2)


def test_rotations_are_computed_in_float32() -> None:
    heads = random_numbers(1, 2, 300, 6).bfloat16()
    rotary = RotaryPositions(6, 300)
    assert torch.equal(rotary(heads), rotary(heads.float()).bfloat16())


def test_rotary_positions_act_on_self_attention_and_nothing_is_added() -> None:
    model = small_model(positions="rotary")
    assert [name for name, module in model.named_modules() if isinstance(module, RotaryPositions)] == [
        f"{stack}.layers.{layer}.self_attn.rotary" for stack, layer in itertools.product(("encoder", "decoder"), (0, 1))
    ]
    x = random_numbers(2, 5, 24)
    assert model.encoder.positions(x, 3) is x
    attention, rotary = model.encoder.layers[0].self_attn, RotaryPositions(6, 32)
    query, key, value = (
        (x @ part.weight.T + part.bias).view(2, 5, 4, 6).transpose(1, 2) for part in (attention.w_q, attention.w_k, attention.w_v)
    )
    heads = F.scaled_dot_product_attention(rotary(query), rotary(key), value, attn_mask=MASK)
    close(attention(x, x, x, MASK), attention.w_concat(heads.transpose(1, 2).flatten(2)))


def test_rotation_tells_word_order_apart_and_distances_only() -> None:
    model = small_model(positions="rotary", d_model=32)
    tokens = random_ids(1, 6)
    assert (model.encode(tokens.flip(1)).flip(1) - model.encode(tokens)).abs().max() > 0.01
    shifted = model.decode(tokens, torch.zeros(1, 1, 32))
    for module in model.decoder.modules():
        if isinstance(module, RotaryPositions):
            module.pe = module.pe.roll(-5, 0)  # every place is five further
    close(model.decode(tokens, torch.zeros(1, 1, 32)), shifted, 1e-5)


def test_a_model_built_without_storage_has_its_rotations_all_the_same() -> None:
    with torch.device("meta"):
        module = RotaryPositions(16, 40)
    assert torch.equal(module.pe, RotaryPositions(16, 40).pe)
    assert module.state_dict() == {}


# Grouped heads


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_grouped_heads_are_full_ones_with_repeated_matrices(kv_heads: int, bias: bool) -> None:
    grouped = MultiHeadAttention(24, 4, d_k=5, d_v=7, kv_heads=kv_heads, bias=bias)
    full = MultiHeadAttention(24, 4, d_k=5, d_v=7, bias=bias)
    weights = grouped.state_dict()
    for name in weights:
        if name.startswith(("w_k", "w_v")):
            weights[name] = weights[name].unflatten(0, (kv_heads, -1)).repeat_interleave(4 // kv_heads, 0).flatten(0, 1)
    full.load_state_dict(weights)
    x, memory = random_numbers(2, 4, 24), random_numbers(2, 5, 24, seed=5)
    close(grouped(x, memory, memory, MASK), full(x, memory, memory, MASK))
    query = grouped.w_q(x).view(2, 4, 4, 5).transpose(1, 2)
    pytorchs = F.scaled_dot_product_attention(query, *grouped.keys_values(memory, memory), attn_mask=MASK, enable_gqa=True)
    close(grouped(x, memory, memory, MASK), grouped.w_concat(pytorchs.transpose(1, 2).flatten(2)))


def test_the_cache_keeps_the_few_heads() -> None:
    model = small_model(kv_heads=2)
    _, cache = model.step(random_ids(2, 3), model.start(model.encode(random_ids(2, 5))))
    for layer in cache.layers:
        assert layer.own is not None
        assert [heads.shape for heads in (*layer.own, *layer.memory)] == [(2, 2, 3, 6)] * 2 + [(2, 2, 5, 6)] * 2


def test_heads_divide_into_groups_or_are_refused() -> None:
    with pytest.raises(ValueError, match="n_heads=4 does not divide by kv_heads=3"):
        MultiHeadAttention(24, 4, kv_heads=3)


# QK-norm


@pytest.mark.parametrize("kind", ["self_attn", "cross_attn"])
def test_qk_norm_is_rms_norm_on_each_head_of_queries_and_keys(kind: str) -> None:
    attention = getattr(small_model(qk_norm=True).decoder.layers[0], kind)
    assert isinstance(attention, MultiHeadAttention)
    x = random_numbers(2, 5, 24)
    query, key, value = (part(x).view(2, 5, 4, 6).transpose(1, 2) for part in (attention.w_q, attention.w_k, attention.w_v))
    query, key = (
        heads / (heads.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
        for heads, norm in ((query, attention.query_norm), (key, attention.key_norm))
    )
    heads = ((query @ key.mT / math.sqrt(6)).masked_fill(~MASK, -math.inf)).softmax(-1) @ value
    close(attention(x, x, x, MASK), attention.w_concat(heads.transpose(1, 2).flatten(2)))


def test_norms_of_queries_and_keys_come_before_the_rotation() -> None:
    """They have weights, which do not commute with it; rotated first, the product would not depend on the distance alone."""
    attention = small_model(qk_norm=True, positions="rotary").encoder.layers[0].self_attn
    x = random_numbers(1, 1, 24).expand(1, 9, 24)
    norm, rotary = attention.key_norm, attention.rotary
    assert norm is not None
    assert rotary is not None
    close(attention.keys_values(x, x).key, rotary(norm(attention.w_k(x).view(1, 9, 4, 6).transpose(1, 2))))


def test_norms_and_rotations_are_computed_in_float32_whatever_the_heads_are_in() -> None:
    """As on a GPU under autocast: heads in bfloat16 are rounded once, when all is done."""
    attention = small_model(qk_norm=True, positions="rotary").encoder.layers[0].self_attn
    norm, rotary = attention.key_norm, attention.rotary
    assert norm is not None
    assert rotary is not None
    heads = random_numbers(2, 4, 5, 6).bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placed = attention._placed(heads, norm, 3)
    assert placed.dtype == torch.bfloat16
    normed = norm(heads.float()).bfloat16()
    assert torch.equal(placed, rotary(normed.float(), 3).bfloat16())


def test_a_whole_attention_under_autocast_is_the_plain_one_to_rounding() -> None:
    attention = small_model(qk_norm=True, positions="rotary").encoder.layers[0].self_attn
    x = random_numbers(2, 5, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = attention(x, x, x, MASK)
    close(output, attention(x, x, x, MASK), 0.05)


# All together

DEPARTURES: dict[str, list[Any]] = {
    "activation": ["relu", "gelu", "swiglu"], "norm": ["layer", "rms"], "norm_place": ["post", "pre", "deepnorm"],
    "positions": ["sinusoidal", "rotary"], "kv_heads": [0, 1, 2], "qk_norm": [False, True],
}  # fmt: skip


def numbers(model: Transformer) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("bias", "d_k", "d_v"), [(True, None, None), (False, 8, 5)])
def test_the_count_from_sizes_is_the_count_of_the_model(bias: bool, d_k: int | None, d_v: int | None) -> None:
    for values in itertools.product(*DEPARTURES.values()):
        changes = dict(zip(DEPARTURES, values, strict=True))
        config = ModelConfig(**SIZES | {"encoder_layers": 1, "decoder_layers": 1} | changes, attention_bias=bias, d_k=d_k, d_v=d_v)
        with torch.device("meta"):
            assert numbers(build_model(config)) == count_parameters(config), changes


def test_swiglu_at_two_thirds_of_the_width_has_about_as_many_numbers() -> None:
    """d_ff is taken as written: 1365 is two thirds of 2048."""
    paper = count_parameters(ModelConfig())
    assert count_parameters(ModelConfig(activation="swiglu", d_ff=1365)) == pytest.approx(paper, rel=1e-3)
    assert count_parameters(ModelConfig(activation="swiglu")) == paper + 12 * (512 * 2048 + 2048)


def test_the_defaults_are_none_of_them() -> None:
    model = ModelConfig()
    assert {name: getattr(model, name) for name in DEPARTURES} == {name: values[0] for name, values in DEPARTURES.items()}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kv_heads": 3}, "n_heads=8 does not divide by kv_heads=3"),
        ({"positions": "rotary", "d_k": 5, "d_v": 5}, "d_k=5 cannot rotate in pairs"),
        ({"activation": "tanh"}, "model.activation='tanh'"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Config().with_values(model=changes)


def test_rotary_positions_need_no_even_width_of_the_model() -> None:
    model = small_model(positions="rotary", d_model=15, n_heads=3, d_k=4, d_v=5)
    assert model(random_ids(2, 5), random_ids(2, 4)).isfinite().all()


def test_a_final_norm_is_a_norm_of_what_the_stack_gives() -> None:
    with_norm, without = small_model(final_norm=True), small_model()
    missing, extra = with_norm.load_state_dict(without.state_dict(), strict=False)
    names = {f"{side}.final_norm.{kind}" for side in ("encoder", "decoder") for kind in ("weight", "bias")}
    assert (set(missing), extra) == (names, [])
    source = random_ids(2, 5)

    def normed(x: Tensor, stack: Any) -> Tensor:
        return F.layer_norm(x, (24,), stack.final_norm.weight, stack.final_norm.bias, 1e-6)

    memory = normed(without.encode(source), with_norm.encoder)
    close(with_norm.encode(source), memory)
    close(with_norm.decode(source, memory), normed(without.decode(source, memory), with_norm.decoder))
    sizes = ModelConfig(**SIZES, final_norm=True)
    assert (
        count_parameters(sizes) == sum(weight.numel() for weight in with_norm.parameters()) == count_parameters(ModelConfig(**SIZES)) + 96
    )
    with pytest.raises(UsageError, match="final_norm=True means nothing to norm_place='pre'"):
        Config().with_values(model=SIZES | {"norm_place": "pre", "final_norm": True})
