"""Models of one sequence: cache = no cache, padded = unpadded on either side, causal or not, and their numbers counted."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.bundle import Bundle, load_bundle, save_bundle
from dragoman.config import Config, ModelConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.prepared import PreparedStep
from dragoman.errors import DragomanError, UsageError
from dragoman.model import LanguageModel, MaskedLanguageModel, Model, Transformer, build_model
from dragoman.presets import count_parameters
from dragoman.training.loss import output_loss, smoothed_cross_entropy, with_bias

SIZES: dict[str, Any] = {"d_model": 24, "d_ff": 40, "n_heads": 4, "source_vocabulary": 19, "target_vocabulary": 19, "max_positions": 32}
GPT: dict[str, Any] = {
    "architecture": "decoder-only", "decoder_layers": 2, "positions": "learned", "norm_place": "pre", "activation": "gelu-tanh",
    "scale_embedding": False, "initialization": "normal",
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "architecture": "decoder-only", "decoder_layers": 2, "positions": "rotary", "rotary_base": 500.0, "norm_place": "pre", "norm": "rms",
    "activation": "swiglu", "kv_heads": 2, "attention_bias": False, "feed_forward_bias": False, "scale_embedding": False, "tie": "none",
}  # fmt: skip
BERT: dict[str, Any] = {
    "architecture": "encoder-only", "encoder_layers": 2, "positions": "learned", "activation": "gelu", "scale_embedding": False,
    "embedding_norm": True, "token_types": 2, "output_transform": True, "pooler": True, "output_bias": True, "initialization": "normal",
}  # fmt: skip
PAPER: dict[str, Any] = {"architecture": "decoder-only", "decoder_layers": 2}
DECODERS = {"gpt": GPT, "llama": LLAMA, "paper": PAPER, "deep": PAPER | {"norm_place": "deepnorm", "output_bias": True, "norm_bias": False}}


def random_model(changes: dict[str, Any]) -> Model:
    """In evaluation mode, with random biases and norms too, so that none of them can be forgotten unseen."""
    model = build_model(ModelConfig(**SIZES | changes), seed=1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def decoder(name: str) -> LanguageModel:
    model = random_model(DECODERS[name])
    assert isinstance(model, LanguageModel)
    return model


def random_ids(*shape: int, seed: int = 3) -> Tensor:
    return torch.randint(4, 19, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", DECODERS)
def test_one_position_at_a_time_is_all_at_once(name: str) -> None:
    model, ids = decoder(name), random_ids(3, 9)
    hidden, cache = model.step(ids[:, :4], model.start())
    states = [hidden]
    for place in range(4, 9):
        hidden, cache = model.step(ids[:, place : place + 1], cache)
        states.append(hidden)
    assert cache.length == 9
    torch.testing.assert_close(model.project(torch.cat(states, 1)), model(ids), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", DECODERS)
def test_a_later_token_changes_nothing_before_it(name: str) -> None:
    model, ids = decoder(name), random_ids(2, 8)
    other = ids.clone()
    other[:, 5] = 4 + (other[:, 5] - 3) % 15
    assert torch.equal(model(ids)[:, :5], model(other)[:, :5])
    assert not torch.allclose(model(ids)[:, 5:], model(other)[:, 5:])


@pytest.mark.parametrize("name", DECODERS)
def test_padding_on_either_side_changes_nothing(name: str) -> None:
    model, ids = decoder(name), random_ids(1, 6)
    alone, padding = model(ids), torch.zeros(1, 3, dtype=torch.long)
    other = random_ids(1, 9, seed=5)
    real = torch.tensor([[True] * 6 + [False] * 3, [True] * 9])
    right = model(torch.cat((torch.cat((ids, padding), 1), other)), real)
    left = model(torch.cat((torch.cat((padding, ids), 1), other)), torch.cat((real[:1].flip(1), real[1:])))
    torch.testing.assert_close(right[:1, :6], alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(left[:1, 3:], alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(left[1:], model(other), atol=1e-5, rtol=0)
    assert left.isfinite().all()


@pytest.mark.parametrize("name", DECODERS)
def test_a_left_padded_batch_goes_on_as_its_rows_do_alone_also_when_they_change_places(name: str) -> None:
    model, short, long, new = decoder(name), random_ids(1, 3), random_ids(1, 5, seed=6), random_ids(2, 2, seed=7)
    padded = torch.cat((torch.cat((torch.zeros(1, 2, dtype=torch.long), short), 1), long))
    real = torch.tensor([[False, False, True, True, True], [True] * 5])
    _, cache = model.step(padded, model.start(real))
    hidden, cache = model.step(new[:, :1], cache.reorder(torch.tensor([1, 0])))
    hidden, _ = model.step(new[:, 1:], cache)
    for row, before in enumerate((long, short)):
        alone = model.hidden(torch.cat((before, new[row : row + 1]), 1))[:, -1:]
        torch.testing.assert_close(hidden[row : row + 1], alone, atol=1e-5, rtol=0)


def test_more_positions_than_the_model_has_are_refused_and_padding_does_not_count() -> None:
    model = decoder("gpt")
    with pytest.raises(ValueError, match="33 positions exceeds the model's 32"):
        model(random_ids(1, 33))
    ids = torch.cat((torch.zeros(1, 4, dtype=torch.long), random_ids(1, 32)), 1)
    torch.testing.assert_close(model(ids, ids > 0)[:, 4:], model(ids[:, 4:]), atol=1e-5, rtol=0)


def test_every_position_of_an_encoder_sees_all_others_but_no_padding() -> None:
    model = random_model(BERT)
    assert isinstance(model, MaskedLanguageModel)
    ids = random_ids(1, 6)
    other = ids.clone()
    other[0, 5] = 4 + (other[0, 5] - 3) % 15
    assert not torch.isclose(model(ids)[0, 0], model(other)[0, 0]).all()
    padded = torch.cat((ids, torch.zeros(1, 2, dtype=torch.long)), 1)
    torch.testing.assert_close(model(padded, padded > 0)[:, :6], model(ids), atol=1e-5, rtol=0)
    assert model.pool(model.encode(ids)).shape == (1, 24)


def test_the_kinds_of_segment_are_told_apart_and_none_given_is_the_first() -> None:
    model, ids = random_model(BERT), random_ids(1, 6)
    zeros = torch.zeros_like(ids)
    assert torch.equal(model(ids, None, zeros), model(ids))
    assert not torch.allclose(model(ids, None, zeros + 1), model(ids))


@pytest.mark.parametrize("changes", [*DECODERS.values(), BERT, BERT | {"norm_place": "pre", "pooler": False, "tie": "none"}])
def test_the_sizes_alone_give_the_number_of_parameters(changes: dict[str, Any]) -> None:
    config = ModelConfig(**SIZES | changes)
    assert count_parameters(config) == sum(weight.numel() for weight in build_model(config).parameters())


# paper.md, section 6: 12 layers of width 768; and nanoGPT's CPU configuration, positions aside
def test_published_parameter_counts() -> None:
    gpt2 = {**GPT, "d_model": 768, "d_ff": 3072, "n_heads": 12, "decoder_layers": 12, "max_positions": 1024}
    assert count_parameters(ModelConfig(**gpt2, source_vocabulary=50_257, target_vocabulary=50_257)) == 124_439_808
    bert = {**BERT, "d_model": 768, "d_ff": 3072, "n_heads": 12, "encoder_layers": 12, "max_positions": 512}
    bert |= {"source_vocabulary": 30_522, "target_vocabulary": 30_522, "output_transform": False, "output_bias": False}
    assert count_parameters(ModelConfig(**bert)) == 109_482_240
    assert count_parameters(ModelConfig(**bert | {"pooler": False})) == 108_891_648
    tiny = bert | {"d_model": 128, "d_ff": 512, "n_heads": 2, "encoder_layers": 2}
    assert count_parameters(ModelConfig(**tiny)) == 4_385_920
    nano = {**GPT, "d_model": 128, "d_ff": 512, "n_heads": 4, "decoder_layers": 4, "max_positions": 64, "attention_bias": False}
    nano |= {"feed_forward_bias": False, "norm_bias": False, "source_vocabulary": 65, "target_vocabulary": 65}
    assert count_parameters(ModelConfig(**nano)) == 795_904 + 8_192


def test_fresh_weights_as_in_gpt() -> None:
    model = build_model(ModelConfig(**SIZES | GPT | {"d_model": 64, "d_ff": 256, "decoder_layers": 8}), seed=1)
    assert isinstance(model, LanguageModel)
    layer = model.layers[3]
    for weight, std in (
        (layer.self_attn.w_q.weight, 0.02),
        (layer.self_attn.w_concat.weight, 0.005),
        (layer.feed_forward[2].weight, 0.005),
    ):
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.1)
    assert model.output.weight[0].abs().sum() == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (GPT | {"encoder_layers": 3}, "encoder_layers=3 means nothing to architecture='decoder-only'"),
        (GPT | {"token_types": 2}, "token_types=2 means nothing to architecture='decoder-only'"),
        (BERT | {"decoder_layers": 3}, "decoder_layers=3 means nothing to architecture='encoder-only'"),
        (BERT | {"rotary_base": 5.0}, "rotary_base=5.0 means nothing to positions='learned'"),
        (LLAMA | {"norm_bias": False}, "norm_bias=False means nothing to norm='rms'"),
        ({"pooler": True}, "pooler=True means nothing to architecture='encoder-decoder'"),
        (GPT | {"source_vocabulary": 20}, "has one vocabulary"),
        (GPT | {"tie": "decoder"}, "set tie to all or none"),
    ],
)
def test_settings_without_an_effect_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=r"^settings: ") as caught:
        Config().with_values(model=SIZES | changes)
    assert said in str(caught.value)


@pytest.mark.parametrize(("changes", "verb"), [(GPT, "dragoman generate"), (BERT, "dragoman fill or dragoman embed")])
def test_a_bundle_gives_back_the_same_model_and_says_what_it_is_for(changes: dict[str, Any], verb: str, tmp_path: Any) -> None:
    tokenizer = Tokenizer.train(["a b c d e f g h i j k l m n o"], kind="whitespace", vocabulary_size=19)
    config = Config().with_values(model=SIZES | changes)
    save_bundle(Bundle(config, random_model(changes), tokenizer, tokenizer), tmp_path / "model")
    loaded, ids = load_bundle(tmp_path / "model"), random_ids(2, 7)
    assert torch.equal(loaded.model(ids), random_model(changes)(ids))
    assert f"- Model: {config.model.architecture} Transformer, 2 layers" in (tmp_path / "model" / "README.md").read_text("utf-8")
    with pytest.raises(DragomanError, match=f"is {config.model.architecture}, and not one that translates: use {verb}"):
        _ = loaded.encoder_decoder


def test_a_bias_after_the_output_matrix_counts_in_search_and_training_alike() -> None:
    sizes = SIZES | {"encoder_layers": 1, "decoder_layers": 1, "output_bias": True}
    model = build_model(ModelConfig(**sizes), seed=1).eval()
    assert isinstance(model, Transformer)
    assert model.output_bias is not None
    with torch.no_grad():
        model.output_bias += torch.linspace(-3, 3, 19)
    source, target = random_ids(2, 5), random_ids(2, 4, seed=8)
    mask = torch.ones_like(source, dtype=torch.bool)
    for precision, close in (("fp32", 1e-5), ("int8", 0.1)):
        step = PreparedStep(model, precision=precision)
        state = step.start(source, mask)
        for place in range(4):
            found, state = step.next(target[:, place], state)
            torch.testing.assert_close(found, model(source, target[:, : place + 1])[:, -1].log_softmax(-1), atol=close, rtol=0)
    hidden, gold = model.decode(target, model.encode(source)).flatten(0, 1), random_ids(8, seed=9)
    plain = smoothed_cross_entropy(model.project(hidden), gold, epsilon=0.1)
    wanted = torch.autograd.grad(plain, [model.output.weight, model.output_bias], retain_graph=True)
    loss = output_loss(*with_bias(hidden, model.output.weight, model.output_bias), gold, epsilon=0.1).smoothed
    torch.testing.assert_close(loss, plain, atol=1e-4, rtol=0)
    for found, expected in zip(torch.autograd.grad(loss, [model.output.weight, model.output_bias]), wanted, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("activation", "golden"),
    [("swish", [-0.26894142, 0.0, 0.73105858, 1.76159416]), ("gelu-tanh", [-0.15880801, 0.0, 0.84119199, 1.95459769])],
)
def test_golden_activations(activation: str, golden: list[float]) -> None:
    model = random_model({"activation": activation, "encoder_layers": 1, "decoder_layers": 1})
    assert isinstance(model, Transformer)
    inner = model.encoder.layers[0].feed_forward[1]
    torch.testing.assert_close(inner(torch.tensor([-1.0, 0.0, 1.0, 2.0])), torch.tensor(golden), atol=1e-6, rtol=0)
