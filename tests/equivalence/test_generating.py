"""Going on with text: cache = no cache, batched = alone, streamed = whole, greedy = beam 1, and what stops a continuation."""

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.batching import pad_rows
from dragoman.decoding.beam import beam_search
from dragoman.decoding.continuing import LanguageModelStep, padded_left
from dragoman.decoding.generate import Continuation, Generator
from dragoman.decoding.generation_options import GenerationOptions
from dragoman.decoding.likelihood import score_lines
from dragoman.decoding.pieces import TextStream
from dragoman.decoding.products import Precision
from dragoman.decoding.sample import sample, sample_keys
from dragoman.decoding.step import StepModel
from dragoman.errors import DragomanError, UsageError
from dragoman.model import LanguageModel
from language_models import GPT, LLAMA, SENTENCE, WORDS, bytes_tokenizer, random_bundle, storyteller

CPU = torch.device("cpu")
KINDS = {"gpt": GPT, "llama": LLAMA, "paper": {"architecture": "decoder-only", "decoder_layers": 2}}
PROMPTS = [" ".join(WORDS.split()[start : start + size]) for start, size in enumerate((3, 1, 7, 2, 5, 12, 4, 1, 6))]


class Whole(NamedTuple):
    """Prompts and all that followed, row by row."""

    rows: list[list[int]]
    first: bool


class RecomputingStep(StepModel[Whole]):
    """A language model without a cache and without padding: every step reads each row from its beginning, or its last ``most`` tokens."""

    def __init__(self, model: LanguageModel, *, most: int | None = None) -> None:
        self.model, self.most = model, most

    def start(self, source: Tensor, source_mask: Tensor) -> Whole:
        """The prompts."""
        return Whole([row[real].tolist() for row, real in zip(source, source_mask, strict=True)], True)

    def next(self, tokens: Tensor, state: Whole) -> tuple[Tensor, Whole]:
        """What follows the last token of each row."""
        rows = state.rows
        if not state.first:
            rows = [[*row, token] for row, token in zip(rows, tokens.tolist(), strict=True)]
        return torch.stack([self.model(torch.tensor([row]))[0, -1].log_softmax(-1) for row in rows]), Whole(rows, False)

    def reorder(self, state: Whole, rows: Tensor) -> Whole:
        """The given rows."""
        return Whole([state.rows[row] for row in rows.flatten().tolist()], state.first)


def padded(bundle: Bundle, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    tokenizer = bundle.target_tokenizer
    return pad_rows([[tokenizer.bos, *ids] for ids in tokenizer.encode_batch(prompts)], pad=tokenizer.pad, device=CPU)


def alike(one: Sequence[Continuation], other: Sequence[Continuation]) -> None:
    """The same texts, tokens and reasons, and scores to rounding."""
    assert [(each.text, each.tokens, each.stop) for each in one] == [(each.text, each.tokens, each.stop) for each in other]
    for left, right in zip(one, other, strict=True):
        assert left.token_scores == pytest.approx(right.token_scores, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_b05_with_the_cache_as_without(kind: str) -> None:
    bundle = random_bundle(KINDS[kind])
    source, mask = padded(bundle, PROMPTS[:5])
    cached, plain = LanguageModelStep(bundle.language_model), RecomputingStep(bundle.language_model)
    with torch.inference_mode():
        states: list[Any] = [model.start(source, mask) for model in (cached, plain)]
        tokens = torch.zeros(5, dtype=torch.long)
        for _ in range(6):
            (found, states[0]), (wanted, states[1]) = (
                model.next(tokens, state) for model, state in zip((cached, plain), states, strict=True)
            )
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
            tokens = wanted.argmax(1)


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_b07_beams_that_change_places_take_their_memory_along(kind: str) -> None:
    bundle = random_bundle(KINDS[kind])
    source, mask = padded(bundle, PROMPTS[:5])
    tokenizer = bundle.target_tokenizer
    common: dict[str, Any] = {"bos": tokenizer.bos, "eos": tokenizer.eos, "max_lengths": [9] * 5}
    for search in (
        {"beam": 4, "n_best": 4, "alpha": 0.6},
        {"alpha": 0.0, "keys": [sample_keys([place], 1, 3) for place in range(5)], "top_k": 8},
    ):
        function: Any = beam_search if "beam" in search else sample
        cached = function(LanguageModelStep(bundle.language_model), source, mask, **common, **search)
        plain = function(RecomputingStep(bundle.language_model), source, mask, **common, **search)
        for found, wanted in zip(cached, plain, strict=True):
            assert [each.tokens for each in found] == [each.tokens for each in wanted]
            assert [each.score for each in found] == pytest.approx([each.score for each in wanted], abs=1e-4)


@pytest.mark.parametrize("precision", get_args(Precision))
def test_a_generator_in_use_can_go_to_another_process(precision: Precision) -> None:
    generator, options = Generator(random_bundle(LLAMA), precision=precision), GenerationOptions(beam=4, max_tokens=8)
    expected = generator.generate(PROMPTS, options)
    assert pickle.loads(pickle.dumps(generator)).generate(PROMPTS, options) == expected


def test_the_scores_of_a_continuation_are_those_of_the_whole_text() -> None:
    bundle = random_bundle(LLAMA)
    options = GenerationOptions(beam=4, n=2, max_tokens=8)
    for prompt, some in zip(PROMPTS, Generator(bundle).generate(PROMPTS, options), strict=True):
        before = score_lines(bundle, [prompt])[0].token_scores[:-1]
        for each in some:
            whole = score_lines(bundle, [prompt + each.text])[0].token_scores
            assert whole[len(before) : len(before) + len(each.tokens)] == pytest.approx(each.token_scores, abs=1e-3)


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"n": 2, "top_p": 0.9}, {"beam": 3, "n": 2}, {"temperature": 0, "slide": 9}], ids=str
)
def test_b33_a_continuation_is_the_same_alone_and_in_any_company(options: dict[str, Any]) -> None:
    generator = Generator(random_bundle(LLAMA, max_positions=20))
    asked = GenerationOptions(max_tokens=14, **options)
    alone = [generator.generate([prompt], asked)[0] for prompt in PROMPTS]
    backwards = generator.generate(PROMPTS[::-1], asked, batch_tokens=100)[::-1]
    for together in (generator.generate(PROMPTS, asked), backwards):
        for one, other in zip(alone, together, strict=True):
            alike(one, other)
    assert not generator.bundle.model.training


def test_greedy_is_a_beam_of_one_and_a_cold_sample() -> None:
    generator = Generator(random_bundle(GPT))
    greedy = generator.generate(PROMPTS, GenerationOptions(temperature=0, max_tokens=9))
    others = ({"beam": 1, "alpha": 0.0}, {"temperature": 1e-4}, {"top_k": 1}, {"top_p": 1e-4}, {"top_p": 0.0})
    for options in others:
        for one, other in zip(greedy, generator.generate(PROMPTS, GenerationOptions(max_tokens=9, **options)), strict=True):
            alike(one, other)
    free = generator.generate(PROMPTS, GenerationOptions(max_tokens=9))
    assert free == generator.generate(PROMPTS, GenerationOptions(max_tokens=9, top_k=41))
    assert free != generator.generate(PROMPTS, GenerationOptions(max_tokens=9, seed=2))


@given(st.lists(st.integers(4, 299), max_size=30), st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_a_streamed_text_is_the_whole_text_in_whole_characters(ids: list[int], prompt: int) -> None:
    tokenizer = bytes_tokenizer()
    ids = [token for token in ids if token < len(tokenizer)]
    stream = TextStream(tokenizer, ids[:prompt])
    parts = [stream.add(token) for token in ids[prompt:]] + [stream.finish()]
    whole = b"".join(map(tokenizer.piece, ids)).decode(errors="replace")
    before = b"".join(map(tokenizer.piece, ids[:prompt])).decode(errors="replace")
    if not before.endswith("�"):  # a prompt is text
        assert "".join(parts) == (whole.removeprefix(" ") if not before.removeprefix(" ") else whole[len(before) :])


def test_characters_come_whole() -> None:
    tokenizer = bytes_tokenizer()
    text = "ñandú 東京 🐟 👩‍🚀!"
    stream = TextStream(tokenizer, tokenizer.encode("Ona"))
    parts = [stream.add(token) for token in tokenizer.encode(text)]
    assert len([part for part in parts if part]) > 8
    assert "".join(parts) == f" {text}"
    assert not any("�" in part for part in parts)
    stream = TextStream(tokenizer, [])
    assert "".join(stream.add(token) for token in tokenizer.encode(text)[:-2]) + stream.finish() == f"{text[:-2]}�"


def test_a_stream_gives_what_generate_gives() -> None:
    for bundle in (storyteller(), random_bundle(GPT, bytes_tokenizer(), max_positions=64)):
        generator = Generator(bundle)
        for options in (
            GenerationOptions(),
            GenerationOptions(temperature=0, stop=("am t", "zz")),
            GenerationOptions(max_tokens=7, seed=5),
        ):
            ((whole,),) = generator.generate(["Once upon"], options)
            parts = list(generator.stream("Once upon", options))
            assert "".join(part.text for part in parts) == whole.text
            assert tuple(token for part in parts for token in part.tokens) == whole.tokens
            assert [score for part in parts for score in part.token_scores] == pytest.approx(whole.token_scores, abs=1e-4)
            assert [part.stop for part in parts] == [""] * (len(parts) - 1) + [whole.stop]


def test_many_streams_together_give_what_generate_gives_each() -> None:
    generator = Generator(random_bundle(GPT, bytes_tokenizer()))
    options = [GenerationOptions(n=place % 3 + 1, seed=place, max_tokens=4 + place, temperature=0.9, stop=("x",)) for place in range(6)]
    texts: dict[tuple[int, int], list[Continuation]] = {}
    for additions in generator.streams(PROMPTS[:6], options, best=2):
        for each in additions:
            texts.setdefault((each.prompt, each.number), []).append(each.continuation)
            assert (each.id is None) == (not each.continuation.tokens)
            if each.id is not None:
                assert [score for _, score in each.best] == sorted((score for _, score in each.best), reverse=True)
                assert each.continuation.token_scores[0] <= each.best[0][1]
                assert each.id not in dict(each.best) or dict(each.best)[each.id] == each.continuation.token_scores[0]
    assert len(texts) == sum(each.n for each in options)
    for place, own in enumerate(options):
        (expected,) = generator.generate([PROMPTS[place]], own)
        for number, whole in enumerate(expected):
            parts = texts[place, number]
            assert "".join(part.text for part in parts) == whole.text
            assert [token for part in parts for token in part.tokens] == list(whole.tokens)
            assert [part.stop for part in parts] == [""] * (len(parts) - 1) + [whole.stop]


def test_a_stop_string_is_the_end_wherever_tokens_are_cut() -> None:
    generator = Generator(storyteller())
    whole = generator.generate(["Once upon"], GenerationOptions(temperature=0))[0][0].text
    assert whole == SENTENCE.removeprefix("Once upon")
    for stop in (" a", "a", "me 🐟", "wam to 東", "🐟 s", "東京.", "d."):
        for options in (GenerationOptions(temperature=0, stop=(stop, "never")), GenerationOptions(beam=2, stop=(stop,))):
            ((found,),) = generator.generate(["Once upon"], options)
            assert (found.text, found.stop) == (whole[: whole.index(stop)], "stop")
            assert "</s>" not in found.tokens
            assert found.log_probability == pytest.approx(sum(found.token_scores))
    ((found,),) = generator.generate(["Once upon"], GenerationOptions(temperature=0, stop=("京", "to", "upon")))
    assert found.text == " a time 🐟 swam "  # the first of them; the prompt's own words are none


def test_how_long_a_continuation_is() -> None:
    generator = Generator(storyteller())
    ((short,),) = generator.generate(["Once"], GenerationOptions(temperature=0, max_tokens=2))
    assert (short.text, short.stop, len(short.tokens)) == (" upon a", "length", 2)
    ((natural,),) = generator.generate(["Once"], GenerationOptions(temperature=0))
    assert (natural.stop, natural.tokens[-1]) == ("end", "</s>")
    ((long,),) = generator.generate(["Once"], GenerationOptions(temperature=0, min_tokens=30, max_tokens=31))
    assert len(long.tokens) >= 30
    assert long.text.startswith(natural.text)
    generator = Generator(random_bundle(LLAMA, seed=2))
    ((full,),) = generator.generate([WORDS], GenerationOptions(temperature=0, min_tokens=16))
    assert (full.stop, len(full.tokens)) == ("context", 32 - 16)


def test_without_room_for_a_continuation_a_prompt_is_refused_or_cut_aloud(caplog: pytest.LogCaptureFixture) -> None:
    generator = Generator(random_bundle(LLAMA))
    long = " ".join([WORDS] * 3)
    with pytest.raises(DragomanError, match="story, line 6 has 46 tokens, and the model's 32 positions take at most 31 before"):
        generator.generate(["ona", long], place="story", first_line=5)
    with pytest.raises(
        DragomanError, match="min_tokens asks for 20 tokens, and after the prompt's 16 the model's 32 positions have room for 16"
    ):
        generator.generate([WORDS], GenerationOptions(min_tokens=20))
    assert not caplog.records
    asked = GenerationOptions(temperature=0, slide=10, max_tokens=40, min_tokens=40)
    ((cut,),) = generator.generate([long], asked, place="story")
    assert caplog.messages == ["story, line 1 has 46 tokens and the model 32 positions; it goes on from the last 10"]
    assert (len(cut.tokens), cut.stop) == (40, "length")


def test_sliding_goes_on_with_the_last_tokens_as_if_they_were_a_prompt() -> None:
    bundle = random_bundle(GPT, seed=3)
    tokenizer, model = bundle.target_tokenizer, bundle.language_model
    ((found,),) = Generator(bundle).generate([PROMPTS[2]], GenerationOptions(temperature=0, slide=12, max_tokens=60, min_tokens=60))
    ids = [tokenizer.bos, *tokenizer.encode(PROMPTS[2])]
    shown, said = [*ids], []
    for _ in range(60):
        if len(shown) > 32:
            shown = [*shown[-13:]]
        scores = model(torch.tensor([shown]))[0, -1].log_softmax(-1)
        scores[[tokenizer.pad, tokenizer.bos, tokenizer.eos]] = -torch.inf
        shown.append(int(scores.argmax()))
        said.append(tokenizer.token(shown[-1]))
    assert list(found.tokens) == said


def test_no_sequence_of_tokens_comes_again_not_even_from_the_prompt() -> None:
    bundle = random_bundle(GPT)
    tokenizer = bundle.target_tokenizer
    for n in (1, 2, 3):
        outputs = Generator(bundle).generate(PROMPTS, GenerationOptions(temperature=0, no_repeat_ngram=n, max_tokens=12))
        for prompt, (each,) in zip(PROMPTS, outputs, strict=True):
            ids = [tokenizer.bos, *tokenizer.encode(prompt)]
            said = [tokenizer.backend.token_to_id(token) for token in each.tokens]
            ngrams = [tuple([*ids, *said][place : place + n]) for place in range(len(ids) + len(said) - n + 1)]
            new = ngrams[len(ids) - n + 1 :]
            assert len(set(new)) == len(new)
            assert not set(new) & set(ngrams[: len(ids) - n + 1])


def test_a_loop_is_ended_where_it_is_asked_for() -> None:
    bundle = random_bundle(GPT, output_bias=True, max_positions=64)
    generator, tokenizer = Generator(bundle), bundle.target_tokenizer
    with torch.no_grad():
        assert bundle.model.output_bias is not None
        bundle.model.output_bias[tokenizer.encode("sova")] = 1e4
    for guard, tokens, stop in ((0, ("sova",) * 40, "length"), (10, (*("sova",) * 11, "</s>"), "repetition")):
        options = GenerationOptions(temperature=0, max_tokens=40, repetition_guard=guard)
        ((found,),) = generator.generate(["ona bek"], options)
        assert (found.tokens, found.stop, found.text) == (tokens, stop, " sova" * (len(tokens) - (stop == "repetition")))
        parts = list(generator.stream("ona bek", options))
        assert (parts[-1].stop, "".join(part.text for part in parts)) == (stop, found.text)


def test_models_together_and_products_in_eight_bits() -> None:
    bundle = random_bundle(GPT)
    options = GenerationOptions(temperature=0, max_tokens=8)
    alone = Generator(bundle).generate(PROMPTS, options)
    twice = Generator(bundle, ensemble={"again": bundle}).generate(PROMPTS, options)
    for one, other in zip(alone, twice, strict=True):
        alike(one, other)
    other = random_bundle(GPT, seed=9)
    both = Generator(bundle, ensemble={"other": other}).generate(PROMPTS, options)
    assert [each[0].text for each in both] != [each[0].text for each in alone]
    model = bundle.language_model
    source, mask = padded(bundle, PROMPTS)
    wanted, _ = LanguageModelStep(model).next(source[:, 0], LanguageModelStep(model).start(source, mask))
    for precision, close in (("int8", 1.0), ("bf16", 0.3)):
        step = LanguageModelStep(model, precision=precision)  # type: ignore[arg-type]
        found, _ = step.next(source[:, 0], step.start(source, mask))
        torch.testing.assert_close(found, wanted, atol=close, rtol=0)
        assert not torch.equal(found, wanted)
    with pytest.raises(UsageError, match="precision=fp8: unknown"):
        Generator(bundle, precision="fp8")  # type: ignore[arg-type]


def test_padding_is_moved_before_the_tokens() -> None:
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]]).bool()
    tokens, real = padded_left(torch.tensor([[5, 6, 0, 0], [1, 2, 3, 4], [0, 7, 8, 0]]), mask)
    assert tokens[real].tolist() == [5, 6, 1, 2, 3, 4, 7, 8]
    assert real.tolist() == [[False, False, True, True], [True] * 4, [False, False, True, True]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": -1}, "temperature=-1: it must be 0 or more"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 1.5}, "top_p=1.5: it must be between 0 and 1"),
        ({"n": 0}, "n=0: it must be 1 or more"),
        ({"n": 10**30}, "it must be at most 10,000, or no memory holds them"),
        ({"beam": 10**5}, "beam=100000: it must be at most 1,000, or no memory holds them"),
        ({"max_tokens": 0}, "max_tokens=0: it must be 1 or more"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens=9 and max_tokens=8"),
        ({"stop": "x"}, "give strings that are not empty"),
        ({"stop": ("x", "")}, "stop='': give strings that are not empty"),
        ({"beam": 2, "seed": 3}, "seed=3 with beam=2: a search draws nothing"),
        ({"beam": 2, "n": 3}, "n=3 with beam=2: it must be at most the beam"),
        ({"alpha": 1.0}, "alpha=1.0 is for beam search"),
        ({"temperature": 0, "n": 2}, "n=2 with temperature=0"),
        ({"temperature": 0, "top_k": 2}, "top_k=2 with temperature=0: nothing is drawn"),
        ({"beam": 2, "alpha": 11.0}, "alpha=11.0 is not between -10 and 10"),
    ],
)
def test_what_cannot_be_asked_for_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        GenerationOptions(**options)
    assert said in str(caught.value)


def test_more_that_cannot_be() -> None:
    generator = Generator(random_bundle(GPT))
    with pytest.raises(UsageError, match="slide=32: it must be at least 1 and less than the model's 32 positions"):
        generator.generate(["ona"], GenerationOptions(slide=32))
    with pytest.raises(UsageError, match="a stream is of one continuation"):
        next(generator.stream("ona", GenerationOptions(beam=2)))
    with torch.no_grad():
        generator.bundle.model.output.weight.fill_(torch.nan)
    for options in (GenerationOptions(), GenerationOptions(beam=2)):
        with pytest.raises(DragomanError, match="positive probability"):
            generator.generate(["ona"], options)
    with pytest.raises(DragomanError, match="positive probability"):
        list(generator.stream("ona"))
