"""What PyTorch runs by itself is what Python runs: the same numbers, whatever the rows, the types and the hypotheses."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dragoman.config import ModelConfig
from dragoman.data.batching import pad_rows
from dragoman.decoding.beam import Hypothesis, beam_search
from dragoman.decoding.greedy import greedy_of
from dragoman.decoding.matrices import ByItself
from dragoman.decoding.options import Precision
from dragoman.decoding.output import LikeliestTokens, LogProbs, OutputProduct
from dragoman.decoding.prepared import PreparedStep
from dragoman.decoding.rules import RepetitionGuard
from dragoman.decoding.step import Asked, CheckedStep
from dragoman.errors import DragomanError
from dragoman.model import Transformer
from dragoman.model.build import build_model
from dragoman.model.embedding import Embedding

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="TorchScript is not for this version of Python")

PLAIN: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm_place": "pre"},
    "no bias": {"attention_bias": False},
    "other widths": {"d_k": 5, "d_v": 7},
    "wide": {"d_model": 400, "d_ff": 360, "source_vocabulary": 400, "target_vocabulary": 400},
}


def model_of(**changes: Any) -> Transformer:
    """With norms that are not those of a new model."""
    torch.manual_seed(1)
    sizes = {"d_model": 24, "d_ff": 40, "n_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    vocabulary = {"source_vocabulary": 150, "target_vocabulary": 150}
    model = build_model(ModelConfig(**{**sizes, **vocabulary, **changes})).eval()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.2)
    return model


def in_python(step: PreparedStep) -> PreparedStep:
    """The same step without what PyTorch runs by itself."""
    step.all_layers.scripted = None  # type: ignore[attr-defined]
    return step


def sources(lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return pad_rows(
        [[4 + (row + place) % 90 for place in range(length)] for row, length in enumerate(lengths)], pad=0, device=torch.device("cpu")
    )


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("kind", PLAIN)
@torch.inference_mode()
def test_layers_by_themselves_are_those_in_python(kind: str, precision: Precision) -> None:
    """One sentence, which is folded; few and many, whose hypotheses change places; to the last bit."""
    model = model_of(**PLAIN[kind])
    steps = PreparedStep(model, precision=precision), in_python(PreparedStep(model, precision=precision))
    assert steps[0].all_layers.scripted is not None  # type: ignore[attr-defined]
    for lengths in ((3,), (12,), (5, 3, 9), (4, 6) * 40):
        states = [step.start(*sources(lengths)) for step in steps]
        tokens, count = torch.ones(len(lengths), dtype=torch.long), 1
        for _ in range(20):
            found, expected = (step.next(tokens, state) for step, state in zip(steps, states, strict=True))
            assert torch.equal(found[0], expected[0])
            rows = torch.arange(len(lengths))[:, None] * count + torch.randint(count, (len(lengths), 3))
            states, count = [step.reorder(made[1], rows) for step, made in zip(steps, (found, expected), strict=True)], 3
            tokens = torch.randint(4, 150, (rows.numel(),))


@pytest.mark.parametrize("kind", [LikeliestTokens, LogProbs])
def test_the_output_layer_is_run_by_itself(kind: type[nn.Module]) -> None:
    assert ByItself(kind()).scripted is not None


@pytest.mark.parametrize("kind", PLAIN)
def test_several_steps_are_run_by_itself(kind: str) -> None:
    model = model_of(**PLAIN[kind])
    greedy = greedy_of(model.decoder, PreparedStep(model).all_layers)
    assert greedy is not None
    assert greedy.scripted is not None


@pytest.mark.parametrize("kind", [{"norm_place": "deepnorm"}, {"norm": "rms"}, {"activation": "gelu"}])
def test_layers_of_other_kinds_are_called(kind: Mapping[str, Any]) -> None:
    assert not isinstance(PreparedStep(model_of(**kind)).all_layers, ByItself)


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("rows", [1, 16, 64, 300])
@pytest.mark.parametrize("entries", [150, 20_000])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_the_likeliest_tokens_by_themselves_are_those_in_python(precision: Precision, rows: int, entries: int, bias: bool) -> None:
    """Without those that follow nothing, whose probability stays in the sum of all; to the last bit."""
    torch.manual_seed(2)
    output = OutputProduct(Embedding(entries, 24, pad=0), torch.randn(entries) if bias else None, precision=precision)
    hidden, never = torch.randn(rows, 24), [(0, 1), (7, 7), (140, entries - 1)]
    for number in (1, 3):
        found = output.likeliest(hidden, output.room(min(rows, 128), None), Asked(number, never))
        log_probs = output.log_probs(hidden, output.room(rows, None)).clone()
        for low, high in never:
            log_probs[:, low : high + 1] = -math.inf
        expected = log_probs.sort(dim=1, descending=True, stable=True)
        assert torch.equal(found.log_probs, expected.values[:, :number])
        assert torch.equal(log_probs.gather(1, found.tokens), found.log_probs)


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("kind", PLAIN)
def test_several_steps_at_once_are_as_many_single_ones(kind: str, precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, whatever ends an output: the end token, the limit, or a loop, which what has not been trained soon goes round in."""
    model, single = model_of(**PLAIN[kind]), list[int]()
    step, steps = PreparedStep(model, precision=precision), PreparedStep.likeliest
    monkeypatch.setattr(PreparedStep, "likeliest", lambda *arguments: single.append(1) or steps(*arguments))

    def found(often: int, lengths: Sequence[int], guard: bool) -> list[Hypothesis]:
        monkeypatch.setattr("dragoman.decoding.prepared._OFTEN", often)
        single.clear()
        hypotheses = []
        for length, most in zip((3, 12, 40), lengths, strict=True):
            source, mask = sources((length,))
            rules = [RepetitionGuard(source.tolist(), least=3, eos=2, device=source.device)] if guard else []
            options: Mapping[str, Any] = {"beam": 1, "alpha": 0.6, "max_lengths": [most], "banned": (0, 1, 9), "rules": rules}
            hypotheses += beam_search(CheckedStep(step, []), source, mask, bos=1, eos=2, **options)[0]
        return hypotheses

    reached = set()
    for lengths, guard in (((40, 9, 60), False), ((40, 35, 60), True), ((1, 2, 3), True)):
        expected = found(10**9, lengths, guard)
        assert len(single) == sum(len(each.tokens) for each in expected)
        assert found(-1, lengths, guard) == expected
        assert guard or len(single) <= 2 * len(expected)  # before the limit, where the end alone may follow, and at it
        reached |= {each.reached_limit for each in expected}
    assert reached == {True, False}


def test_no_steps_are_taken_at_once_behind_a_hypothesis_that_cannot_be() -> None:
    """Of a model of which every number is none nothing comes, and it is said."""
    model = model_of()
    nn.init.constant_(model.decoder.layers[0].norm1.bias, math.nan)
    step = PreparedStep(model)
    step._alone = 100
    source, mask = sources((5,))
    with pytest.raises(DragomanError, match="no output of positive probability"):
        beam_search(step, source, mask, bos=1, eos=2, beam=1, alpha=0.6, max_lengths=[20])


@pytest.mark.parametrize("length", [0.1, 10.0, 90.0, 1000.0])
@torch.inference_mode()
def test_log_probabilities_are_right_however_large_the_logits_are(length: float) -> None:
    """Of those that are bounded and those that are not, for e^89 is beyond float32; of many rows and of few."""
    torch.manual_seed(3)
    embedding = Embedding(300, 16, pad=0)
    embedding.weight.copy_(F.normalize(torch.randn(300, 16), dim=1))
    output, hidden = OutputProduct(embedding, None, precision="fp32"), length * F.normalize(torch.randn(40, 16), dim=1)
    hidden[3], hidden[4] = (
        -length * embedding.weight[5],
        length * embedding.weight[6],
    )  # a logit as far from 0 as one can be, on either side
    expected = (hidden.double() @ embedding.weight.double().t()).log_softmax(1)
    for rows in (40, 5):
        some, room = hidden[:rows], output.room(rows, None)
        torch.testing.assert_close(output.log_probs(some, room).double(), expected[:rows], rtol=1e-6, atol=1e-6 * (10 + length))
        found = output.likeliest(some, room, Asked(4))
        torch.testing.assert_close(found.log_probs.double(), expected[:rows].topk(4).values, rtol=1e-6, atol=1e-6 * (10 + length))


def test_what_fails_by_itself_says_why_in_python() -> None:
    """An infinite number that a layer makes has no scale in 8 bits."""
    model = model_of(d_model=400)
    nn.init.constant_(model.decoder.layers[0].norm1.weight, 3e38)
    step = PreparedStep(model, precision="int8")
    with torch.inference_mode(), pytest.raises(DragomanError, match="not all numbers of the model are finite"):
        step.next(torch.ones(2, dtype=torch.long), step.start(*sources((3, 5))))


def test_a_pytorch_that_runs_nothing_by_itself_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(module: nn.Module) -> nn.Module:
        raise RuntimeError("TorchScript is gone")

    model, (source, mask) = model_of(), sources((5, 3, 9))
    expected = beam_search(PreparedStep(model), source, mask, bos=1, eos=2, beam=3, alpha=0.6, max_lengths=[9, 8, 7])
    monkeypatch.setattr(torch.jit, "script", refused)
    step = PreparedStep(model)
    assert step.all_layers.scripted is None  # type: ignore[attr-defined]
    assert beam_search(step, source, mask, bos=1, eos=2, beam=3, alpha=0.6, max_lengths=[9, 8, 7]) == expected
