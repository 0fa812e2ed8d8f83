"""Steps by kernels (`fused`) against the same steps by PyTorch: numbers, choices, and searches."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from dragoman.config import ModelConfig
from dragoman.data.batching import pad_rows
from dragoman.decoding import fused
from dragoman.decoding.beam import Hypothesis, beam_search
from dragoman.decoding.prepared import PreparedStep
from dragoman.decoding.step import TransformerStep
from dragoman.model import Transformer
from dragoman.model.build import build_model

pytest.importorskip("numba", reason="Numba, of the extra fast, is not installed")
if not fused.goes_fused(torch.zeros(64, 64)):
    pytest.skip("PyTorch has no product of matrices in bfloat16 here that kernels could call", allow_module_level=True)

SIZES: dict[str, Any] = {
    "d_model": 48, "d_ff": 80, "n_heads": 3, "encoder_layers": 1, "decoder_layers": 3, "source_vocabulary": 150, "target_vocabulary": 150,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm_place": "pre"},
    "other widths": {"d_k": 16, "d_v": 32, "n_heads": 2},
    "no bias": {"attention_bias": False},
}


def model_of(**changes: Any) -> Transformer:
    """A model of which every bias and every norm matters."""
    torch.manual_seed(1)
    model = build_model(ModelConfig(**{**SIZES, **changes})).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, float("weight" in name), 0.3)
        elif name.endswith("bias"):
            nn.init.normal_(parameter, 0, 0.5)
    return model


def sources(lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    return pad_rows([torch.randint(4, 40, (length,)).tolist() for length in lengths], pad=0, device=torch.device("cpu"))


@pytest.mark.parametrize("lengths", [(3, 21, 5, 1), (6,), (9, 9) * 20], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_each_step_has_nearly_the_same_log_probabilities(kind: str, lengths: Sequence[int]) -> None:
    """Beams grow, hypotheses are doubled and dropped, sentences leave, there are more steps than a new cache has room for, and keys that
    nobody sees go. What bfloat16 costs is an error of a few hundredths in the worst of all, and of a few thousandths on average.
    """
    model = model_of(**KINDS[kind])
    plain, prepared = TransformerStep(model), PreparedStep(model, precision="bf16")
    assert prepared.fused is not None
    source, mask = sources(lengths)
    states = (plain.start(source, mask), prepared.start(source, mask))
    tokens, sentences, count, errors = torch.ones(len(source), dtype=torch.long), len(source), 1, []
    for step in range(36):
        expected, first = plain.next(tokens, states[0])
        found, second = prepared.next(tokens, states[1])
        errors.append((found - expected).abs())
        kept = torch.arange(sentences)
        if step in (7, 20) and sentences > 1:  # the first sentence leaves
            kept, sentences = kept[1:], sentences - 1
        rows = kept[:, None] * count + torch.randint(count, (sentences, 3))
        count = 3
        states = (plain.reorder(first, rows), prepared.reorder(second, rows))
        tokens = torch.randint(4, 150, (sentences * count,))
    assert max(float(each.max()) for each in errors) < 0.12
    assert max(float(each.mean()) for each in errors) < 0.02


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("number", [1, 5, 12])
@pytest.mark.parametrize("vocabulary", [5, 16, 63, 64, 150, 1000])
def test_the_chosen_tokens_are_the_most_probable(vocabulary: int, number: int, biased: bool) -> None:
    """In falling order, equal ones by their ids, without those that may never follow; of these the probability is of all others' share."""
    torch.manual_seed(3)
    number = min(number, vocabulary - 4)
    hidden, matrix = torch.randn(300, 32), torch.randn(32, vocabulary)
    matrix[:, -1] = matrix[:, 4]  # two that are equal
    bias = torch.randn(vocabulary) if biased else None
    if bias is not None:
        bias[-1] = bias[4]
    never = [(0, 0), (2, 3)]
    log_probs, tokens = fused.chosen_tokens(hidden, matrix.bfloat16(), bias, number, never)
    logits = hidden.bfloat16().double() @ matrix.bfloat16().double()
    expected = (logits if bias is None else logits + bias).log_softmax(-1)
    for low, high in never:
        expected[:, low : high + 1] = -math.inf
    values, places = expected.sort(dim=1, descending=True, stable=True)
    torch.testing.assert_close(log_probs, values[:, :number].float(), atol=5e-6, rtol=0)
    torch.testing.assert_close(expected.gather(1, tokens).float(), log_probs, atol=5e-6, rtol=0)
    assert (tokens == places[:, :number]).float().mean() > 0.99  # but where two are nearer than float32 tells
    equal = (tokens == 4).any(1) & (tokens == vocabulary - 1).any(1)
    assert number == 1 or vocabulary == 5 or equal.any()
    for row in tokens[equal].tolist():
        assert vocabulary == 5 or row.index(4) + 1 == row.index(vocabulary - 1)


def searched(step: PreparedStep, batch: tuple[torch.Tensor, torch.Tensor], beam: int) -> list[list[Hypothesis]]:
    source, mask = batch
    options: dict[str, Any] = {"beam": beam, "n_best": beam, "alpha": 0.6, "max_lengths": [30] * len(source), "banned": (0, 1)}
    return beam_search(step, source, mask, bos=1, eos=2, **options)


@pytest.mark.parametrize("beam", [1, 4])
def test_searches_at_the_same_time_find_what_each_finds_alone(beam: int) -> None:
    """What is in passing is each call's own."""
    step = PreparedStep(model_of(), precision="bf16")
    wanted = [sources([length, length + 7, 3] * 12) for length in range(2, 10)]
    expected = [searched(step, batch, beam) for batch in wanted]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda batch: searched(step, batch, beam), wanted)) == expected


def test_a_number_that_is_none_is_not_lost() -> None:
    hidden, matrix = torch.randn(2, 32), torch.randn(32, 100).bfloat16()
    hidden[1, 5] = math.nan
    log_probs, _ = fused.chosen_tokens(hidden, matrix, None, 2, [])
    assert log_probs[0].isfinite().all()
    assert log_probs[1].isnan().all()
    step = PreparedStep(model_of(), precision="bf16")
    x, (source, mask) = torch.randn(2, 48), sources((3, 3))
    x[0, 7] = math.nan
    state = step.start(source, mask)
    assert step.fused is not None
    hidden = step.fused(x, state.own, state.memory, None, state.memory_mask, 0)
    assert hidden[0].isnan().all()
    assert hidden[1].isfinite().all()


def test_without_numba_or_where_sizes_do_not_fit_pytorch_makes_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PreparedStep(model_of(d_ff=72), precision="bf16").fused is None
    assert PreparedStep(model_of(d_model=40, n_heads=2, d_k=16, d_v=16), precision="bf16").fused is None
    assert PreparedStep(model_of(), precision="fp32").fused is None
    monkeypatch.setattr(fused, "product_address", lambda: None)
    step = PreparedStep(model_of(), precision="bf16")
    assert step.fused is None
    assert not step.output.fused
    assert len(searched(step, sources((3, 5)), 2)) == 2
