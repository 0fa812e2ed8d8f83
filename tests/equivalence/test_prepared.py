"""A decoder prepared for search is the decoder: the same log-probabilities, whatever hypotheses and sentences come and go."""

import copy
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dragoman.config import ModelConfig
from dragoman.data.batching import pad_rows
from dragoman.decoding import products
from dragoman.decoding.beam import beam_search
from dragoman.decoding.matrices import FEWEST_NARROW
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.output import OutputProduct
from dragoman.decoding.prepared import Precision, PreparedStep, can_prepare, modules_of, step_of
from dragoman.decoding.prepared_encoder import PreparedEncoder, Tokens, prepared_encoder
from dragoman.decoding.products import EightBits, Product
from dragoman.decoding.rules import MinimumLength, NoRepeatedNgram, RepetitionGuard
from dragoman.decoding.step import Asked, CheckedStep, StepModel, TransformerStep, largest, likeliest
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError, UsageError
from dragoman.model import Transformer
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.build import build_model
from dragoman.model.embedding import Embedding
from dragoman.model.layers import DecoderLayer
from dragoman.model.linear import Linear
from dragoman.model.masks import padding_mask
from dragoman.model.transformer import Decoder, Encoder
from small_bundles import WORDS, fx_rand, fx_toy, random_sentences

SIZES: Mapping[str, Any] = {
    "d_model": 24, "d_ff": 40, "n_heads": 2, "encoder_layers": 2, "decoder_layers": 3,
    "source_vocabulary": 150, "target_vocabulary": 150,
}  # fmt: skip
KINDS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm_place": "pre"},
    "deepnorm": {"norm_place": "deepnorm"},
    "rms": {"norm": "rms", "norm_place": "pre"},
    "gelu": {"activation": "gelu"},
    "swiglu": {"activation": "swiglu"},
    "no bias": {"attention_bias": False},
    "other widths": {"d_k": 5, "d_v": 7},
    "learned positions": {"positions": "learned"},
    "wide": {"d_model": 400, "d_ff": 360, "source_vocabulary": 400, "target_vocabulary": 400},
}
NOT_PREPARED: Mapping[str, Mapping[str, Any]] = {"rotary": {"positions": "rotary"}, "fewer heads": {"kv_heads": 1}, "qk": {"qk_norm": True}}


def model_of(**changes: Any) -> Transformer:
    torch.manual_seed(1)
    model = build_model(ModelConfig(**{**SIZES, **changes})).eval()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            nn.init.normal_(module.weight, 1.0, 0.2)
    return model


def some_sources(lengths: Sequence[int] = (3, 9, 5, 1)) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    return pad_rows([torch.randint(4, 40, (length,)).tolist() for length in lengths], pad=0, device=torch.device("cpu"))


@pytest.mark.filterwarnings("error:An output with one or more elements was resized")  # what PyTorch does where the room is too small
@pytest.mark.parametrize("times", [1, 5])  # few sentences and many have another attention
@pytest.mark.parametrize(
    ("kind", "lengths"), [*((kind, (3, 9, 5, 1)) for kind in KINDS), ("paper", (5, 5, 5, 5)), ("paper", (3, 21, 5, 1))]
)
@torch.inference_mode()
def test_each_step_has_the_same_log_probabilities(kind: str, lengths: Sequence[int], times: int) -> None:
    """Beams grow, hypotheses are doubled and dropped, sentences leave, there are more steps than a new cache has room for, and keys that
    nobody sees go.
    """
    model = model_of(**KINDS[kind])
    assert can_prepare(model)
    plain, prepared = TransformerStep(model), PreparedStep(model)
    source, mask = some_sources(tuple(lengths) * times)
    states = (plain.start(source, mask), prepared.start(source, mask))
    tokens, sentences, count = torch.ones(len(source), dtype=torch.long), len(source), 1
    for step in range(30):
        expected, first = plain.next(tokens, states[0])
        found, second = prepared.next(tokens, states[1])
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
        kept = torch.arange(sentences)
        if step in (7, 20):  # the first sentence leaves
            kept, sentences = kept[1:], sentences - 1
        rows = kept[:, None] * count + torch.randint(count, (sentences, 3))
        count = 3
        states = (plain.reorder(first, rows), prepared.reorder(second, rows))
        tokens = torch.randint(4, 150, (sentences * count,))
    most = 45 if source.shape <= (4, 9) else 70  # the more sentences, the more keys of the one that has most
    assert second.length < most < states[0].length * 3


@pytest.mark.parametrize(("kind", "length"), [*((kind, 6) for kind in KINDS), ("paper", 1), ("paper", 12), ("paper", 13)])
@torch.inference_mode()
def test_one_sentence_alone_has_the_same_log_probabilities(kind: str, length: int) -> None:
    """Its attention to the source is folded into the products around it while that is less to read: up to D / H tokens. Its hypotheses may
    grow in number, and other sentences join it, which it was when it had none of them.
    """
    model = model_of(**KINDS[kind])
    for layer in model.decoder.layers:
        for linear in (layer.cross_attn.w_q, layer.cross_attn.w_concat):  # type: ignore[union-attr]
            if linear.bias is not None:  # type: ignore[union-attr]
                nn.init.normal_(linear.bias)  # type: ignore[arg-type, union-attr]
    plain, prepared = TransformerStep(model), PreparedStep(model)
    source, mask = some_sources((length,))
    states = (plain.start(source, mask), prepared.start(source, mask))
    attention = model.decoder.layers[0].cross_attn
    assert (states[1].folded is not None) == (2 * length <= attention.d_k + attention.d_v)  # type: ignore[union-attr, operator]
    tokens = torch.ones(1, dtype=torch.long)
    for rows in ([[0]], [[0, 0, 0]], [[2, 2, 0]], [[0, 1], [2, 1]], [[3, 2], [0, 0], [1, 0]], [[1, 0]], [[0, 1]]):
        expected, first = plain.next(tokens, states[0])
        found, second = prepared.next(tokens, states[1])
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
        states = (plain.reorder(first, torch.tensor(rows)), prepared.reorder(second, torch.tensor(rows)))
        tokens = torch.randint(4, 150, (sum(map(len, rows)),))


class _TwiceEncoder(Encoder):
    def forward(self, *args: Any) -> torch.Tensor:
        return 2 * super().forward(*args)


class _TwiceAttention(MultiHeadAttention):
    def forward(self, *args: Any) -> torch.Tensor:
        return 2 * super().forward(*args)


@pytest.mark.parametrize("kind", [*KINDS, *NOT_PREPARED, "embedding norm", "token types", "own encoder", "own attention"])
@torch.inference_mode()
def test_the_encoder_has_the_same_memory(kind: str) -> None:
    """Where there is padding and where there is none; what is not as in the paper is computed by the layers themselves."""
    encoder = model_of(**{**KINDS, **NOT_PREPARED}.get(kind, {})).encoder
    if kind == "embedding norm":
        encoder.embedding_norm = nn.LayerNorm(SIZES["d_model"])
    if kind == "token types":
        encoder.token_types = nn.Embedding(2, SIZES["d_model"])
    if kind == "own encoder":
        encoder.__class__ = _TwiceEncoder
    if kind == "own attention":
        encoder.layers[0].self_attn.__class__ = _TwiceAttention
    prepared = prepared_encoder(encoder, "fp32")
    assert isinstance(prepared, PreparedEncoder) == (kind not in (*NOT_PREPARED, "token types", "own encoder", "own attention"))
    for lengths, computed in (((3, 9, 5, 1), 18), ((9, 9, 8), 27), ((6, 6), 12), ((7,), 7)):
        source, tokens = some_sources(lengths)
        places = Tokens(tokens)
        rows = prepared(source, places)
        assert len(rows) == computed  # padding is left out where there is much
        expected = encoder(source, None if tokens.all() else padding_mask(tokens))[tokens]
        torch.testing.assert_close(places.padded(rows)[tokens], expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_attention_whose_products_are_in_8_bits_is_not_folded() -> None:
    """What is asked for is computed: few rows by a small matrix are in float32 in each precision, by a large one they are not."""
    source, mask = some_sources((5,))
    for size, precisions in ((SIZES["d_model"], get_args(Precision)), (400, ("fp32", "bf16"))):
        model = model_of(d_model=size)
        folding = {precision for precision in get_args(Precision) if PreparedStep(model, precision=precision).start(source, mask).folded}
        assert folding == {*precisions}


@torch.inference_mode()
def test_sentences_from_the_end_may_take_the_places_of_those_that_leave() -> None:
    """Few of a cache move then, in place; what stays must be what it was, with one hypothesis and with several."""
    model = model_of(output_bias=True)
    nn.init.normal_(model.output_bias)  # type: ignore[arg-type]
    plain, prepared = TransformerStep(model), PreparedStep(model)
    source, mask = pad_rows([[4 + row] * (1 + row % 7) for row in range(20)], pad=0, device=torch.device("cpu"))
    for count in (1, 3):
        states = (plain.start(source, mask), prepared.start(source, mask))
        tokens, hypotheses = torch.ones(20, dtype=torch.long), 1
        for kept in ([*range(20)], [0, 19, 2, 18, *range(4, 18)], [*range(17)], [16, 1, 2, 15, *range(4, 15)], [3], [0]):
            expected, first = plain.next(tokens, states[0])
            found, second = prepared.next(tokens, states[1])
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
            rows = torch.tensor(kept)[:, None] * hypotheses + torch.randint(hypotheses, (len(kept), count))
            hypotheses = count
            states = (plain.reorder(first, rows), prepared.reorder(second, rows))
            tokens = torch.randint(4, 150, (rows.numel(),))


def test_a_search_of_no_sentences_finds_none() -> None:
    model, (source, mask) = model_of(), some_sources()
    for step in (PreparedStep(model), TransformerStep(model)):
        assert beam_search(step, source[:0], mask[:0], bos=1, eos=2, beam=3, alpha=0.6, max_lengths=[]) == []


@torch.inference_mode()
def test_the_log_probabilities_of_a_search_share_their_room() -> None:
    model = model_of()
    step, (source, mask) = PreparedStep(model), some_sources()
    tokens = torch.ones(4, dtype=torch.long)
    first, state = step.next(tokens, step.start(source, mask))
    before = first.clone()
    other, _ = step.next(tokens, step.start(source, mask))
    assert torch.equal(first, before)  # another search has room of its own
    assert torch.equal(other, before)
    second, _ = step.next(tokens, state)
    assert second.data_ptr() == first.data_ptr()


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("rows", [1, 3, 12, 13, 64, 128, 200])
@pytest.mark.parametrize(("entries", "width"), [(150, 24), (1000, 140)])
@torch.inference_mode()
def test_the_output_layer_is_the_same_for_any_number_of_rows_in_room_or_without(
    precision: Precision, rows: int, entries: int, width: int
) -> None:
    """Single rows, few, many, and blocks of bfloat16 and of oneDNN."""
    torch.manual_seed(3)
    output = Embedding(entries, width, pad=0)
    product = OutputProduct(output, torch.randn(entries), precision=precision)
    hidden = torch.randn(rows, width)
    expected = F.linear(hidden, output.weight, product.bias).log_softmax(-1)
    found = [product.log_probs(hidden, room) for room in (None, product.room(rows, None))]
    rough = rows >= {"fp32": math.inf, "bf16": FEWEST_NARROW, "int8": 9 if entries == 150 else 1}[precision]
    for each in found:
        torch.testing.assert_close(each, expected, atol={"bf16": 0.05, "int8": 0.25}[precision] if rough else 1e-5, rtol=0)
        assert torch.allclose(each, expected, atol=1e-5) != rough  # the type is used from so many rows


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("rows", [1, 5, 300])
@torch.inference_mode()
def test_the_likeliest_tokens_are_those_of_all_log_probabilities(rows: int, precision: Precision) -> None:
    """A few rows at a time, each with what may not follow it, whose number is that of its place among all."""
    model = model_of(d_model=32, source_vocabulary=400, target_vocabulary=400, output_bias=True)
    steps = [PreparedStep(model, precision=precision) for _ in range(2)]
    source, mask = some_sources((4,) * rows)
    tokens = torch.arange(rows) % 390 + 5
    forbidden = torch.rand(rows, 400) < 0.5

    def restrict(log_probs: torch.Tensor, first: int) -> None:
        log_probs.masked_fill_(forbidden[first : first + len(log_probs)], -math.inf)

    log_probs, _ = steps[0].next(tokens, steps[0].start(source, mask))
    found, _ = likeliest(steps[1], tokens, steps[1].start(source, mask), Asked(3, restrict=restrict))
    assert hasattr(steps[1], "likeliest")
    values, places = largest(log_probs.masked_fill(forbidden, -math.inf), 3)
    assert torch.equal(found.log_probs, values)
    assert torch.equal(found.tokens, places)


class _WholeStep(StepModel[Any]):
    """A step model that knows nothing but all log-probabilities."""

    def __init__(self, model: StepModel[Any]) -> None:
        self.model = model

    def start(self, source: torch.Tensor, source_mask: torch.Tensor) -> Any:
        return self.model.start(source, source_mask)

    def next(self, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        return self.model.next(tokens, state)

    def reorder(self, state: Any, rows: torch.Tensor) -> Any:
        return self.model.reorder(state, rows)


@pytest.mark.parametrize("beam", [1, 4])
def test_rules_hold_for_each_row_though_few_are_looked_at_at_a_time(beam: int) -> None:
    """A search of 150 sentences gives what it gives where all rows of a step are looked at together."""
    model = model_of()
    lengths = [2 + number % 7 for number in range(150)]
    source, mask = some_sources(tuple(lengths))
    device = torch.device("cpu")
    found = []
    for step in (PreparedStep(model), _WholeStep(PreparedStep(model)), CheckedStep(PreparedStep(model), [])):
        rules = [
            MinimumLength([length // 2 for length in lengths], eos=2, device=device),
            NoRepeatedNgram(2),
            RepetitionGuard([row.tolist() for row in source], least=4, eos=2, device=device),
        ]
        most = [length + 3 for length in lengths]
        found.append(beam_search(step, source, mask, bos=1, eos=2, banned=(0, 1, 7), beam=beam, alpha=0.6, max_lengths=most, rules=rules))
    assert found[0] == found[1] == found[2]
    assert len({len(hypotheses[0].tokens) for hypotheses in found[0]}) > 3


@pytest.mark.parametrize(
    "onednn", [pytest.param(True, marks=pytest.mark.skipif(not EightBits.pays(64), reason="no 8 bits by oneDNN here")), False]
)
@torch.inference_mode()
def test_many_logits_of_8_bits_are_made_some_rows_at_a_time(onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is what its rows alone are, by oneDNN where it is faster, and nowhere where the processor has no instructions for it."""
    monkeypatch.setattr(products, "_VNNI", onednn)
    torch.manual_seed(4)
    product = OutputProduct(Embedding(1000, 140, pad=0), torch.randn(1000), precision="int8")
    for rows in (120, 150):
        hidden = torch.randn(rows, 140)
        found = product.log_probs(hidden, product.room(rows, None))
        pieces = hidden.split(64)
        assert torch.equal(found, torch.cat([product.log_probs(piece, product.room(len(piece), None)) for piece in pieces]))
        exact = F.linear(hidden, product.weight, product.bias).log_softmax(-1)
        torch.testing.assert_close(found, exact, atol=0.2, rtol=0)
    assert ("_eight" in vars(product)) == onednn


@pytest.mark.skipif(not EightBits.pays(64), reason="no 8 bits by oneDNN here")
@torch.inference_mode()
def test_8_bits_by_onednn_are_the_product_whatever_the_numbers() -> None:
    """To half a step of the inputs and the weights; 0 is exact, and numbers that are none are no silent result."""
    torch.manual_seed(5)
    layer = Linear(96, 200)
    product = EightBits(layer.weight, layer.bias)
    for x in (torch.randn(64, 96), torch.rand(40, 96) + 3, -torch.rand(33, 96), torch.zeros(50, 96), 1e-30 * torch.randn(64, 96)):
        step = (x.amax().clamp(min=0) - x.amin().clamp(max=0)) / 255
        bound = 0.51 * (step * layer.weight.abs().sum(1) + x.abs().sum(1, keepdim=True) * layer.weight.abs().amax(1) / 127) + 1e-5
        assert ((product(x) - layer(x)).abs() <= bound).all()
    for number in (math.nan, math.inf, -math.inf):
        x = torch.randn(64, 96)
        x[3, 5] = number
        with pytest.raises(DragomanError, match="not all numbers of the model are finite"):
            product(x)


@pytest.mark.skipif(not (products._VNNI and products._sums_are_whole()), reason="inputs have 7 bits here")
@torch.inference_mode()
def test_inputs_have_8_bits_where_no_sum_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a step of the inputs is about all that is lost, and a step of 7 bits is twice as large."""
    torch.manual_seed(6)
    layer, x, errors = Linear(400, 400), torch.randn(64, 400), []
    for vnni in (True, False):
        monkeypatch.setattr(products, "_VNNI", vnni)
        errors.append((Product(layer, precision="int8").forward(x) - layer(x)).abs().mean())
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.skipif(not products.ONEDNN, reason="no 8 bits by oneDNN here")
def test_onednn_without_the_instructions_for_8_bits_is_not_asked() -> None:
    """It would lose up to half of a sum, and say nothing."""
    largest_numbers = """
import torch
from dragoman.decoding.output import OutputProduct
from dragoman.model.embedding import Embedding
output = Embedding(100, 512, pad=0)
with torch.inference_mode():
    output.weight.fill_(1.0)
    assert (OutputProduct(output, None, precision="int8")._of_its_own(torch.ones(64, 512)) - 512).abs().max() < 1
"""
    subprocess.run([sys.executable, "-c", largest_numbers], check=True, env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"})


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("place", ["encoder.layers.0.norm1.weight", "encoder.layers.1.feed_forward.0.bias", "decoder.final_norm.bias"])
def test_a_weight_that_is_no_number_is_not_lost_in_8_bits(place: str, number: float) -> None:
    """A product in 8 bits can make finite numbers of it, also of what comes from biases and norms, which are not in 8 bits themselves."""
    model = model_of(norm_place="pre", d_model=400)
    nn.init.constant_(model.get_parameter(place)[5:6], number)
    with pytest.raises(DragomanError, match="the model's weights are damaged"):
        PreparedStep(model, precision="int8")


@torch.inference_mode()
def test_few_rows_by_a_small_matrix_stay_out_of_8_bits() -> None:
    small, large = Linear(24, 30), Linear(400, 400)
    for layer, rows, exact in ((small, 8, True), (small, 9, False), (large, 1, False)):
        x = torch.randn(rows, layer.in_features)
        found = Product(layer, precision="int8").forward(x)
        torch.testing.assert_close(found, layer(x), atol=0.1, rtol=0)
        assert torch.allclose(found, layer(x), atol=1e-5) == exact


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("biases", [(True, True), (False, False), (False, True)])
@pytest.mark.parametrize("width", [24, 400])
@torch.inference_mode()
def test_a_product_is_the_layers_side_by_side(precision: Precision, biases: tuple[bool, bool], width: int) -> None:
    layers = [Linear(width, size, bias=bias) for size, bias in zip((330, 10), biases, strict=True)]
    product = Product(*layers, precision=precision)
    for rows in (1, 9, 64):
        x = torch.randn(rows, width)
        exact = torch.cat([layer(x) for layer in layers], 1)
        torch.testing.assert_close(product.forward(x), exact, atol=1e-5 if precision == "fp32" else 0.1, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_a_product_in_blocks_is_the_layer_for_any_number_of_rows(bias: bool) -> None:
    """As they come, with others that fill a count up, and in pieces; of a matrix that does not lie row by row as well."""
    layer = Linear(301, 499, bias=bias)
    layer.weight = nn.Parameter(layer.weight.t().contiguous().t())
    product = Product(layer, precision="fp32")
    for rows in (0, 1, 2, 8, 9, 57, 64, 65, 127, 128, 129, 257, 300):
        x = torch.randn(301, rows).t()
        torch.testing.assert_close(product.forward(x), layer(x), atol=1e-5, rtol=0)
    x = torch.randn(3, 50, 301)
    torch.testing.assert_close(product.forward(x), layer(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("onednn", [pytest.param(True, marks=pytest.mark.skipif(not products.ONEDNN, reason="not by oneDNN here")), False])
@torch.inference_mode()
def test_larger_matrices_alone_lie_in_blocks_and_none_without_onednn(onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "ONEDNN", onednn)
    for kind in ("paper", "wide"):
        model, in_blocks, (source, mask) = model_of(**KINDS[kind]), onednn and kind == "wide", some_sources()
        step, tokens = PreparedStep(model), torch.ones(4, dtype=torch.long)
        assert (step.layers[0].heads.query.blocks is not None) == in_blocks
        assert (step.output._matrix(4).blocks is not None) == in_blocks
        assert (step.encoder.layers[0].concat.__self__.matrix.blocks is not None) == in_blocks  # type: ignore[union-attr]
        found, expected = (each.next(tokens, each.start(source, mask))[0] for each in (step, TransformerStep(model)))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


class _RowsByOneDNN(TorchDispatchMode):
    """Keeps how many rows each product by oneDNN had."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.mkldnn._linear_pointwise.default:
            self.counts.append(len(args[0]))
        return func(*args, **kwargs or {})


@pytest.mark.skipif(not products.ONEDNN, reason="not by oneDNN here")
@torch.inference_mode()
def test_few_counts_of_rows_are_asked_of_onednn() -> None:
    """It keeps code, and memory for what is in passing, of each."""
    product, seen = Product(Linear(400, 400), precision="fp32"), _RowsByOneDNN()
    with seen:
        for rows in range(1, 400):
            assert len(product.forward(torch.zeros(rows, 400))) == rows
    assert sorted(set(seen.counts)) == [*range(4, 9), *range(16, 65, 8), *range(80, 129, 16)]


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("times", [1, 10])
@torch.inference_mode()
def test_a_prepared_model_can_be_copied_after_use(precision: Precision, times: int) -> None:
    """As those who keep a translator copy it, whatever form its matrices lie in, which few rows and many may have apart."""
    prepared, (source, mask) = PreparedStep(model_of(**KINDS["wide"]), precision=precision), some_sources((3, 9, 5, 1) * times)
    tokens = torch.ones(4 * times, dtype=torch.long)
    expected, _ = prepared.next(tokens, prepared.start(source, mask))
    copied = copy.deepcopy(prepared)
    assert torch.equal(copied.next(tokens, copied.start(source, mask))[0], expected)


@pytest.mark.parametrize("precision", get_args(Precision))
@torch.inference_mode()
def test_a_search_may_be_under_autocast(precision: Precision) -> None:
    model, (source, mask) = model_of(**KINDS["wide"]), some_sources()
    prepared, tokens = PreparedStep(model, precision=precision), torch.ones(4, dtype=torch.long)
    expected, _ = prepared.next(tokens, prepared.start(source, mask))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = prepared.next(tokens, prepared.start(source, mask))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.3, rtol=0)


@pytest.mark.parametrize("kind", NOT_PREPARED)
def test_other_kinds_are_left_to_the_plain_step(kind: str) -> None:
    model = model_of(**NOT_PREPARED[kind])
    assert not can_prepare(model)
    assert isinstance(step_of(model), TransformerStep)


def test_a_watched_model_is_computed_by_its_own_layers() -> None:
    model, seen = model_of(), []
    handle = model.decoder.layers[1].feed_forward.register_forward_hook(lambda *_: seen.append(1))
    source, mask = some_sources()
    settings: dict[str, Any] = {"bos": 1, "eos": 2, "beam": 2, "alpha": 0.6, "max_lengths": [6] * 4}
    watched = beam_search(step_of(model), source, mask, **settings)
    assert seen
    handle.remove()
    assert isinstance(step_of(model), PreparedStep)
    for one, other in zip(beam_search(step_of(model), source, mask, **settings), watched, strict=True):
        assert one[0].tokens == other[0].tokens


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@torch.inference_mode()
def test_rough_products_stay_near(precision: Precision) -> None:
    """Many rows, for few are computed in float32 with bfloat16; a quarter of a nat is far less than what decides."""
    model = model_of(d_model=64, d_ff=128)
    source = torch.randint(4, 40, (100, 8))
    mask, tokens = torch.ones_like(source, dtype=torch.bool), torch.randint(4, 150, (100,))
    found, expected = (
        step.next(tokens, step.start(source, mask))[0] for step in (PreparedStep(model, precision=precision), TransformerStep(model))
    )
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found.logsumexp(1), torch.zeros(100), atol=1e-5, rtol=0)
    assert (found - expected).abs().mean() < 0.25 * expected.std()
    assert (found - expected).abs().max() < 0.25


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize(("precision", "least", "apart"), [("fp32", 200, 0.0), ("bf16", 190, 0.05), ("int8", 170, 0.1)])
def test_a_trained_model_in_doubt_translates_nearly_all_alike_in_each_precision(
    precision: Precision, least: int, apart: float, beam: int
) -> None:
    choose = random.Random(0)
    texts = [" ".join(choose.sample(WORDS, choose.randint(2, 8))) for _ in range(200)]
    exact, found = (Translator(fx_toy(), precision=each).translate(texts, beam=beam) for each in ("fp32", precision))
    alike = [(one, other) for one, other in zip(found, exact, strict=True) if one.tokens == other.tokens]
    assert len(alike) >= least
    assert all(abs(one.log_probability - other.log_probability) <= apart * len(one.tokens) for one, other in alike)


def test_a_translator_takes_each_precision() -> None:
    bundle, texts = fx_rand(seed=4), random_sentences(10, seed=2)
    exact = Translator(bundle).translate(texts, beam=2)
    for precision in get_args(Precision):
        found = Translator(bundle, precision=precision).translate(texts, beam=2)
        assert [each.text == "" for each in found] == [each.text == "" for each in exact]
        for one in found:
            assert one.log_probability == pytest.approx(sum(one.token_scores), abs=1e-5)
    assert Translator(bundle, precision="fp32").translate(texts, beam=2) == exact


@pytest.mark.parametrize("precision", get_args(Precision))
def test_weights_that_change_are_used_as_they_are(precision: Precision) -> None:
    bundle, texts = fx_rand(seed=4), random_sentences(10, seed=2)
    translator = Translator(bundle, precision=precision)
    before = translator.translate(texts)
    with torch.no_grad():
        bundle.model.decoder.layers[0].self_attn.w_q.weight.neg_()  # type: ignore[operator, union-attr]
    after = translator.translate(texts)
    assert after != before
    assert after == Translator(bundle, precision=precision).translate(texts)


@pytest.mark.parametrize("precision", get_args(Precision))
def test_a_translator_in_use_can_go_to_another_process(precision: Precision) -> None:
    translator, texts = Translator(fx_rand(seed=4), precision=precision), random_sentences(10, seed=2)
    options = SearchOptions(forbid=("ona",))
    expected = translator.translate(texts, options=options)
    assert pickle.loads(pickle.dumps(translator)).translate(texts, options=options) == expected


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_model_that_is_watched_later_keeps_its_layers_or_is_refused(side: str) -> None:
    bundle, seen = fx_rand(seed=4), []
    exact, rough = Translator(bundle), Translator(bundle, precision="bf16")
    expected = exact.translate(["ona bek"])
    rough.translate(["ona bek"])
    getattr(bundle.model, side).layers[0].register_forward_hook(lambda *_: seen.append(1))
    assert exact.translate(["ona bek"])[0].tokens == expected[0].tokens
    assert seen
    with pytest.raises(UsageError, match="whose layers nobody watches"):
        rough.translate(["ona bek"])


def test_a_precision_that_a_model_does_not_have_is_refused() -> None:
    bundle = fx_rand(seed=4, positions="rotary")
    with pytest.raises(UsageError, match="precision=int8 is for Transformers without rotary positions"):
        Translator(bundle, precision="int8")


@pytest.mark.parametrize("width", [20, 640, 700, 1000])
@pytest.mark.parametrize("k", [1, 5])
def test_the_largest_are_those_of_a_full_sort(width: int, k: int) -> None:
    torch.manual_seed(width)
    scores = torch.randperm(20 * width).view(4, 5, width).float()
    scores[1, 2, : width - k] = -torch.inf
    expected = scores.topk(k)
    values, places = largest(scores, k)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)


@pytest.mark.parametrize("rows", [(1, 1), (2, 2), (5, 1)])
def test_the_largest_one_of_few_rows(rows: tuple[int, int]) -> None:
    scores = torch.randperm(5000).view(5, 1000)[: rows[0] * rows[1]].float().view(*rows, 1000)
    values, places = largest(scores, 1)
    assert torch.equal(values, scores.amax(-1, keepdim=True))
    assert torch.equal(places, scores.argmax(-1, keepdim=True))


def test_the_largest_of_many_rows_and_of_none() -> None:
    scores = torch.randperm(300 * 200).view(300, 200).float()
    values, places = largest(scores, 3)
    assert torch.equal(values, scores.topk(3).values)
    assert torch.equal(places, scores.topk(3).indices)
    assert largest(scores[:0], 3)[0].shape == (0, 3)


def test_all_modules_are_found_once_also_where_one_stands_twice_or_holds_its_holder() -> None:
    model = model_of()
    model.encoder.layers[1] = model.encoder.layers[0]
    found = modules_of(model)
    assert len(found) == len(set(found))
    assert set(found) == set(model.modules())
    outer = nn.Sequential(nn.Linear(2, 2))
    outer.append(outer)
    assert modules_of(outer) == [outer, outer[0]]


class _TwiceLinear(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class _TwiceLayer(DecoderLayer):
    def forward(self, *args: Any) -> Any:
        made, *rest = super().forward(*args)
        return 2 * made, *rest


class _TwiceDecoder(Decoder):
    def forward(self, *args: Any) -> Any:
        made, cache = super().forward(*args)
        return 2 * made, cache


class _TwiceTransformer(Transformer):
    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * super().project(hidden)


class _TwiceEmbedding(Embedding):
    def logits(self, hidden: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return 2 * super().logits(hidden, bias)


def _twice(forward: Callable[..., Any]) -> Callable[..., Any]:
    def twice(*args: Any) -> Any:
        made = forward(*args)
        return (2 * made[0], *made[1:]) if isinstance(made, tuple) else 2 * made

    return twice


OWN: Mapping[str, type[nn.Module]] = {
    "": _TwiceTransformer, "decoder": _TwiceDecoder, "decoder.layers.2": _TwiceLayer, "output": _TwiceEmbedding,
    **dict.fromkeys(
        ("encoder.layers.0.self_attn.w_q", "encoder.layers.0.feed_forward.2", "decoder.layers.0.self_attn.w_concat",
         "decoder.layers.0.cross_attn.w_k", "decoder.layers.0.feed_forward.0"),
        _TwiceLinear,
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ["class", "method"])
@pytest.mark.parametrize("place", OWN)
@torch.inference_mode()
def test_a_part_with_a_forward_of_its_own_is_computed_by_it(place: str, way: str) -> None:
    """As adapters beside a matrix have, whose weights alone are not what the part computes."""
    model = model_of()
    part = model.get_submodule(place)
    source, mask = some_sources()
    before = step_of(model).next(torch.ones(4, dtype=torch.long), step_of(model).start(source, mask))[0].clone()
    if way == "class":
        part.__class__ = OWN[place]
    elif place:
        name = "logits" if place == "output" else "forward"
        setattr(part, name, _twice(getattr(part, name)))
    else:
        pytest.skip("search does not call a Transformer's forward")
    found, expected = (
        step.next(torch.ones(4, dtype=torch.long), step.start(source, mask))[0] for step in (step_of(model), TransformerStep(model))
    )
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    assert not torch.allclose(found, before, atol=1e-3)
