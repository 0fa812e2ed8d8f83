"""Reported faults of decode-cache (B05, B07): a cache must change nothing but the time."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.batching import pad_rows
from dragoman.decoding.beam import Hypothesis, beam_search
from dragoman.decoding.score import score_pairs
from dragoman.decoding.step import TransformerStep
from dragoman.model import FusedAttention, ScaledDotProductAttention
from small_bundles import fx_rand, random_sentences
from step_models import RecomputingStep

CPU = torch.device("cpu")


def sources(bundle: Bundle, count: int) -> tuple[Tensor, Tensor]:
    tokenizer = bundle.source_tokenizer
    texts = random_sentences(count, seed=7)
    return pad_rows([[*ids, tokenizer.eos] for ids in tokenizer.encode_batch(texts)], pad=tokenizer.pad, device=CPU)


@pytest.mark.parametrize("attention", [ScaledDotProductAttention(), FusedAttention()])
def test_b05_one_new_query_sees_every_cached_key(attention: torch.nn.Module) -> None:
    query = torch.tensor([[[[1.0, 0.0]]]])
    key = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]])
    value = torch.tensor([[[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]])
    torch.testing.assert_close(attention(query, key, value).output, torch.tensor([[[[3.0, 4.0]]]]))


@pytest.mark.parametrize(
    "kind", [{"norm_place": "post"}, {"norm_place": "pre"}, {"positions": "rotary", "kv_heads": 1, "qk_norm": True}], ids=str
)
def test_b05_cached_steps_equal_recomputed_ones(kind: dict[str, Any]) -> None:
    bundle = fx_rand(seed=3, **kind)
    model = bundle.model.eval()
    source, mask = sources(bundle, 6)
    cached_step, plain_step = TransformerStep(model), RecomputingStep(model)
    with torch.inference_mode():
        cached, plain = cached_step.start(source, mask), plain_step.start(source, mask)
        tokens = source.new_full((6,), bundle.target_tokenizer.bos)
        for length in range(1, 11):
            (with_cache, cached), (without, plain) = cached_step.next(tokens, cached), plain_step.next(tokens, plain)
            assert cached.length == length
            torch.testing.assert_close(with_cache, without, atol=1e-5, rtol=0)
            assert torch.equal(with_cache.argmax(-1), without.argmax(-1))
            tokens = with_cache.argmax(-1)


@pytest.mark.parametrize(("seed", "kind"), [(0, {}), (2, {}), (2, {"positions": "rotary", "kv_heads": 1})])
def test_b07_beams_take_their_cache_along(seed: int, kind: dict[str, Any]) -> None:
    bundle = fx_rand(seed=seed, **kind)
    model, tokenizer = bundle.model.eval(), bundle.target_tokenizer
    source, mask = sources(bundle, 20)

    def search(step: TransformerStep | RecomputingStep) -> list[list[Hypothesis]]:
        return beam_search(
            step, source, mask, bos=tokenizer.bos, eos=tokenizer.eos, banned=(tokenizer.pad, tokenizer.bos),
            beam=4, alpha=0.6, n_best=4, max_lengths=[10] * 20,
        )  # fmt: skip

    with torch.inference_mode():
        cached, recomputed = search(TransformerStep(model)), search(RecomputingStep(model))
        for place, (found, expected) in enumerate(zip(cached, recomputed, strict=True)):
            assert len(found) == 4
            assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in expected]
            assert [hypothesis.score for hypothesis in found] == pytest.approx([hypothesis.score for hypothesis in expected], abs=1e-4)
            for hypothesis in found:
                output = torch.tensor([hypothesis.tokens])
                given = torch.tensor([[tokenizer.bos, *hypothesis.tokens[:-1]]])
                forced = score_pairs(model, source[place : place + 1], mask[place : place + 1], given, output)[0]
                assert hypothesis.token_scores == pytest.approx(forced.tolist(), abs=1e-4)
                assert hypothesis.log_probability == pytest.approx(forced.sum().item(), abs=1e-4)
