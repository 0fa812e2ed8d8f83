"""A trace changes nothing: the numbers are the plain path's to the last bit, and the fused path's to rounding."""

import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dragoman.bundle import Bundle
from dragoman.explain.record import Trace, plain_copy, recording, watched_call
from dragoman.model import FusedAttention, MaskedLanguageModel, MultiHeadAttention, Transformer
from dragoman.training.schedule import paper_rate
from explained import DEPARTURES, bundle_of

IDS, GIVEN, MASK = torch.tensor([[5, 6, 7, 8, 9, 2]]), torch.tensor([[1, 6, 5, 9]]), torch.ones(1, 6, dtype=torch.bool)


def logits(model: nn.Module) -> Tensor:
    if isinstance(model, Transformer):
        return model(IDS, GIVEN, MASK)  # type: ignore[no-any-return]
    return model(IDS, MASK)  # type: ignore[no-any-return]


@pytest.fixture(params=DEPARTURES)
def bundle(request: pytest.FixtureRequest) -> Bundle:
    return bundle_of(request.param)


def test_traced_is_untraced_to_the_last_bit_and_fused_to_rounding(bundle: Bundle) -> None:
    with torch.inference_mode():
        fused, plain, trace = logits(bundle.model), plain_copy(bundle.model), Trace()
        untraced = logits(plain)
        with recording(trace, plain):
            traced = logits(plain)
        assert torch.equal(traced, untraced)
        assert torch.equal(logits(plain), untraced)
    assert (traced - fused).abs().max() < 1e-5
    assert np.array_equal(trace.array("output.logits"), traced[0].numpy())


def test_the_model_keeps_its_kernel_its_weights_and_no_hook(bundle: Bundle) -> None:
    plain, trace = plain_copy(bundle.model), Trace()
    with torch.inference_mode(), recording(trace, plain):
        logits(plain)
    pairs = list(zip(bundle.model.parameters(), plain.parameters(), strict=True))
    assert all(one is other for one, other in pairs)
    heads = [module for module in bundle.model.modules() if isinstance(module, MultiHeadAttention)]
    assert heads
    assert all(type(module.attention) is FusedAttention for module in heads)
    for module in (*bundle.model.modules(), *plain.modules()):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_every_layer_and_head_is_there(bundle: Bundle) -> None:
    trace, plain = Trace(), plain_copy(bundle.model)
    with torch.inference_mode(), recording(trace, plain):
        logits(plain)
    sizes = {"encoder": (6, 6), "decoder": (6, 6) if bundle.config.model.single else (4, 4)}
    stacks = {"encoder-decoder": ("encoder", "decoder"), "decoder-only": ("decoder",), "encoder-only": ("encoder",)}
    for stack in stacks[bundle.config.model.architecture]:
        for layer in range(2):
            assert trace.array(f"{stack}.{layer}.self.weights").shape == (2, *sizes[stack])
            assert trace.array(f"{stack}.{layer}.self.heads").shape == (2, sizes[stack][0], bundle.config.model.value_width)
            assert trace.array(f"{stack}.{layer}.feed_forward.inner").shape == (sizes[stack][0], 24)
            assert np.allclose(trace.array(f"{stack}.{layer}.self.weights").sum(-1), 1, atol=1e-6)
    if isinstance(bundle.model, Transformer):
        for layer in range(2):
            assert trace.array(f"decoder.{layer}.cross.weights").shape == (2, 4, 6)  # a row for each target, a column for each source token
    assert len({id(value) for recorded in trace.values() for value in recorded.values}) > 20
    assert all(len(recorded.values) == 1 for name, recorded in trace.items() if not name.endswith(("turned", "query_norm", "key_norm")))


def test_a_tied_matrix_is_named_by_what_it_does() -> None:
    """The embedding of a paper's model is one module in three places."""
    bundle, trace = bundle_of("paper"), Trace()
    plain = plain_copy(bundle.model)
    with torch.inference_mode(), recording(trace, plain):
        logits(plain)
    assert isinstance(bundle.model, Transformer)
    assert bundle.model.encoder.embedding is bundle.model.output
    assert trace.array("encoder.embedding.embedded").shape == (6, 16)
    assert trace.array("decoder.embedding.embedded").shape == (4, 16)
    assert trace.array("output.logits").shape == (4, 24)


def test_what_a_function_returns_without_a_tensor_is_recorded_too() -> None:
    trace, before = Trace(), sys.gettrace()
    value = watched_call(trace, paper_rate, 100, d_model=512, warmup_steps=4000)
    assert value == paper_rate(100, d_model=512, warmup_steps=4000)
    assert trace.array("schedule.rate") == value
    assert trace.line("schedule.rate").place == "(3)"
    assert sys.gettrace() is before


def test_only_the_files_that_are_asked_for(bundle: Bundle) -> None:
    trace, plain = Trace(), plain_copy(bundle.model)
    with torch.inference_mode(), recording(trace, files=("model/embedding.py",)):
        logits(plain)
    lines = {recorded.line.file for recorded in trace.values() if recorded.line}
    assert lines == {"model/embedding.py"}
    assert isinstance(plain, MaskedLanguageModel) or "embedding.logits" not in trace
