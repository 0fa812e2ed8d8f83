"""``--precision auto`` of translating: a type that is clearly faster is taken when the scores say that it is safe, and stays.

How long anything takes is made up; what the types do to the scores is not.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from command_line import but_for_limits, tiny_bundle
from dragoman.cli import main, unfinished
from dragoman.decoding import fastest, matrices, products
from dragoman.decoding.fastest import Choice, Harm, forced_scores, harm_of, other_types, step_times
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.phrases import Prefix
from dragoman.decoding.prepared import PreparedStep, step_of
from dragoman.decoding.products import Precision
from dragoman.decoding.search import Search, Wanted
from dragoman.decoding.step import StepModel
from dragoman.decoding.translate import Translator
from dragoman.errors import UsageError
from dragoman.model import Transformer
from small_bundles import fx_rand, fx_toy, random_sentences

TEXTS = random_sentences(20, longest=8, words=24, seed=3)


@pytest.fixture(autouse=True)
def cpu_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor of this machine: products of both types are there, be they slow."""
    monkeypatch.setattr(fastest, "other_types", lambda device: ["bf16", "int8"])


def timed(monkeypatch: pytest.MonkeyPatch, *, bf16: float, int8: float) -> None:
    """As if a step took these multiples of its time in float32."""
    monkeypatch.setattr(fastest, "step_times", lambda *_: {"fp32": 1.0, "bf16": bf16, "int8": int8})


def allow_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """For models with random weights, to which 8 bits do more than to trained ones."""
    monkeypatch.setattr(fastest, "NEAR", math.inf)
    monkeypatch.setattr(fastest, "WORSE", math.inf)


def damage_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the products in 8 bits were wrong: their weights are half as large again."""
    packed = products._packed
    monkeypatch.setattr(products, "_packed", lambda weight, bias: packed(1.5 * weight, bias))


class Around(StepModel[Any]):
    """Another step model, as it is."""

    def __init__(self, inner: StepModel[Any]) -> None:
        self.inner = inner

    def start(self, source: Tensor, source_mask: Tensor) -> Any:
        return self.inner.start(source, source_mask)

    def next(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.inner.next(tokens, state)

    def reorder(self, state: Any, rows: Tensor) -> Any:
        return self.inner.reorder(state, rows)


def searched(texts: list[str], *, beam: int = 4) -> tuple[Translator, Search, list[Wanted]]:
    """A translator in float32, a plain search of its own, and the texts as it gets them."""
    translator = Translator(fx_toy())
    search = translator._search(beam, 0.6, 1, None, SearchOptions())
    tokenizer = translator.bundle.source_tokenizer
    return translator, search, [Wanted(tokenizer.as_source(ids), "", Prefix([], {}), ()) for ids in tokenizer.encode_batch(texts)]


def chosen(translator: Translator, texts: list[str] = TEXTS) -> Choice:
    """What a translator chooses when it translates."""
    translator.translate(texts)
    assert translator.choice is not None
    return translator.choice


def test_what_is_not_clearly_faster_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, bf16=0.93, int8=1.4)
    translator = Translator(fx_toy(), precision="auto")
    assert translator.translate(TEXTS) == Translator(fx_toy()).translate(TEXTS)
    assert str(translator.choice) == "precision: fp32 (bf16 and int8 are not clearly faster here)"


@pytest.mark.parametrize(("bf16", "int8", "right", "speed"), [(0.5, 0.4, "int8", "2.5"), (0.5, 0.6, "bf16", "2.0")])
def test_the_fastest_that_is_safe_is_taken(
    bf16: float, int8: float, right: Any, speed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timed(monkeypatch, bf16=bf16, int8=int8)
    allow_all(monkeypatch)
    translator = Translator(fx_toy(), precision="auto")
    with caplog.at_level(logging.INFO, "dragoman"):
        found = translator.translate(TEXTS)
    assert found == Translator(fx_toy(), precision=right).translate(TEXTS)
    assert found != Translator(fx_toy()).translate(TEXTS)
    begins = f"precision: {right} ({speed} times as fast as fp32 here; log-probabilities differ by up to 0.0"
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(begins)
    assert said.endswith(" a token on 16 sentences)")


def test_a_faster_type_whose_scores_are_off_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, bf16=0.95, int8=0.3)
    damage_int8(monkeypatch)
    translator = Translator(fx_toy(), precision="auto")
    assert translator.translate(TEXTS) == Translator(fx_toy()).translate(TEXTS)
    assert translator.choice is not None
    assert translator.choice.precision == "fp32"
    assert translator.choice.why.startswith("int8 is 3.3 times as fast, but log-probabilities differ by up to ")


def test_the_next_fastest_is_looked_at_then(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, bf16=0.8, int8=0.3)
    damage_int8(monkeypatch)
    choice = chosen(Translator(fx_toy(), precision="auto"))
    assert choice.precision == "bf16"
    assert choice.why.startswith("1.2 times as fast as fp32 here; log-probabilities differ by up to ")
    assert "; int8 is 3.3 times as fast, but " in choice.why


def test_it_is_made_once_and_on_the_first_texts_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_all(monkeypatch)
    timed(monkeypatch, bf16=0.9, int8=0.3)
    translator = Translator(fx_toy(), precision="auto")
    translator.translate(["", " "])
    assert translator.choice is None
    choice = chosen(translator, TEXTS[:1])
    assert choice.why.endswith(" a token on 1 sentence")
    timed(monkeypatch, bf16=9.0, int8=9.0)
    assert chosen(translator) is choice


def test_threads_of_one_translator_have_one_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever each of them would have measured: who comes while another measures translates in the type that is chosen then."""
    allow_all(monkeypatch)
    measured, all_here = [], threading.Barrier(4)

    def times(*_: object) -> dict[str, float]:
        measured.append(threading.current_thread())
        time.sleep(0.1)  # in which the others come
        return {"fp32": 1.0, "bf16": 2.0, "int8": 0.5 if len(measured) == 1 else 2.0}

    monkeypatch.setattr(fastest, "step_times", times)
    translator = Translator(fx_toy(), precision="auto")
    made = translator._search

    def together(*settings: Any) -> Search:
        search = made(*settings)
        all_here.wait(30)  # all have a search in float32 before anyone chooses
        return search

    monkeypatch.setattr(translator, "_search", together)
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(translator.translate, [TEXTS] * 4)]
    assert len(measured) == 1
    assert found == [Translator(fx_toy(), precision="int8").translate(TEXTS)] * 4


def test_prefixes_terms_and_samples_have_no_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, bf16=0.9, int8=0.3)
    allow_all(monkeypatch)
    plain = chosen(Translator(fx_toy(), precision="auto"), TEXTS[:5])
    told = Translator(fx_toy(), precision="auto")
    told.translate(TEXTS[:5], prefixes=["KEB "] * 5, options=SearchOptions(require=("ULIT",)), max_length=30)
    drawn = Translator(fx_toy(), precision="auto")
    drawn.translate(TEXTS[:5], options=SearchOptions(sample=True))
    assert told.choice == drawn.choice == plain


def test_several_models_choose_together(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, bf16=0.9, int8=0.3)
    allow_all(monkeypatch)
    one, other, texts = fx_rand(seed=1), fx_rand(seed=2), random_sentences(6)
    translator = Translator(one, ensemble={"other": other}, precision="auto")
    found = translator.translate(texts)
    assert translator.choice is not None
    assert translator.choice.precision == "int8"
    assert found == Translator(one, ensemble={"other": other}, precision="int8").translate(texts)


def test_models_that_cannot_be_prepared_have_fp32() -> None:
    bundle, texts = fx_rand(positions="rotary"), random_sentences(3)
    translator = Translator(bundle, precision="auto")
    assert translator.translate(texts) == Translator(bundle).translate(texts)
    assert str(translator.choice) == "precision: fp32 (the only type of models of this kind)"


def test_a_model_that_is_watched_later_is_computed_by_its_own_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, bf16=0.9, int8=0.3)
    allow_all(monkeypatch)
    bundle, seen = fx_rand(seed=4), []
    translator = Translator(bundle, precision="auto")
    assert chosen(translator, random_sentences(3)).precision == "int8"
    assert isinstance(bundle.model, Transformer)
    handle = bundle.model.decoder.layers[0].register_forward_hook(lambda *_: seen.append(1))
    watched = translator.translate(random_sentences(3))
    assert seen
    handle.remove()
    exact = Translator(bundle).translate(random_sentences(3))
    assert [each.tokens for each in watched] == [each.tokens for each in exact]


def test_other_devices_have_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    for narrow, right in ((True, ["bf16"]), (False, [])):
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, narrow=narrow: narrow)
            assert other_types(torch.device("cuda")) == right
    assert other_types(torch.device("mps")) == []
    assert other_types(torch.device("cpu"))[0] == "bf16"
    monkeypatch.setattr(fastest, "other_types", lambda device: [])
    assert str(chosen(Translator(fx_toy(), precision="auto"))) == "precision: fp32 (the only type on cpu)"


@torch.inference_mode()
def test_forced_scores_are_those_of_the_search_and_of_score() -> None:
    translator, search, wanted = searched(TEXTS[:5])
    exact = [found[0].hypothesis for found in search(wanted, 4096)]
    forced = forced_scores(search.model, search, wanted, [each.tokens for each in exact])
    scored = translator.score(TEXTS[:5], [each.text for each in translator.translate(TEXTS[:5], alpha=0.6)])
    for own, each, other in zip(forced, exact, scored, strict=True):
        assert own == pytest.approx(each.token_scores, abs=1e-4)
        assert own == pytest.approx(other.token_scores, abs=1e-4)
    assert harm_of(search.model, search, wanted, exact) == Harm(pytest.approx(0.0, abs=1e-5), 0.0)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@torch.inference_mode()
def test_rough_products_are_seen_however_few_texts_there_are(precision: Any) -> None:
    """Few rows of bf16 are computed in float32, which would hide what many rows are."""
    _, search, wanted = searched(TEXTS[:1])
    exact = [found[0].hypothesis for found in search(wanted, 4096)]
    rough = step_of(search.bundle.encoder_decoder, precision=precision)
    assert isinstance(rough, PreparedStep)
    harm = harm_of(rough, search, wanted, exact)
    assert 1e-5 < harm.apart < 0.25
    forced = forced_scores(rough, search, wanted, [exact[0].tokens])
    differences = [abs(one - other) for one, other in zip(forced[0], exact[0].token_scores, strict=True)]
    assert harm.apart == pytest.approx(sum(differences) / len(differences))


@torch.inference_mode()
def test_few_texts_are_searched_for_often_enough_to_be_rough() -> None:
    _, search, wanted = searched(TEXTS[:1], beam=4)
    exact = [found[0].hypothesis for found in search(wanted, 4096)]
    started = []

    class Counting(Around):
        def start(self, source: Tensor, source_mask: Tensor) -> Any:
            started.append(len(source))
            return super().start(source, source_mask)

    harm_of(Counting(search.model), search, wanted, exact)
    assert started == [1, matrices.FEWEST_NARROW // 4]


@torch.inference_mode()
def test_outputs_that_lose_score_are_seen_where_log_probabilities_are_near() -> None:
    """A step that is right about what float32 says, and wrong about a word that it never says."""
    _, search, wanted = searched(TEXTS[:4])
    exact = [found[0].hypothesis for found in search(wanted, 4096)]
    said = {token for each in exact for token in each.tokens}
    target = search.bundle.target_tokenizer
    never = next(token for token in range(len(target)) if token not in said | {target.pad, target.bos, target.eos, target.unk})

    class Wrong(Around):
        def next(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            log_probs, state = super().next(tokens, state)
            log_probs[tokens != never, never] = -0.001
            return log_probs, state

    harm = harm_of(Wrong(search.model), search, wanted, exact)
    assert harm.apart < 1e-4
    assert harm.worse > 0.1
    assert not harm.safe
    assert str(harm) == f"its outputs score {harm.worse:.2g} a token less"


def test_both_bounds_count_and_no_number_is_near() -> None:
    assert Harm(fastest.NEAR, fastest.WORSE).safe
    assert Harm(0.0, -1.0).safe  # outputs that float32 likes better than its own
    assert not Harm(1.01 * fastest.NEAR).safe
    assert not Harm(0.0, 1.01 * fastest.WORSE).safe
    assert not Harm(math.nan).safe


@pytest.mark.parametrize("row", [0, 3])
@torch.inference_mode()
def test_a_sentence_without_numbers_is_seen_wherever_it_stands(row: int) -> None:
    _, search, wanted = searched(TEXTS[:4])
    exact = [found[0].hypothesis for found in search(wanted, 4096)]

    class Broken(Around):
        def next(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            log_probs, state = super().next(tokens, state)
            log_probs.view(4, -1, log_probs.size(1))[row] = math.nan
            return log_probs, state

    harm = harm_of(Broken(search.model), search, wanted, exact)
    assert math.isnan(harm.apart)
    assert not harm.safe


@torch.inference_mode()
def test_each_type_is_timed() -> None:
    _, search, wanted = searched(TEXTS[:3])
    model = search.bundle.encoder_decoder
    steps: Mapping[Any, Any] = {"fp32": search.model} | {name: step_of(model, precision=name) for name in ("bf16", "int8")}
    before = torch.get_rng_state()
    times = step_times(steps, search, wanted)
    assert list(times) == ["fp32", "bf16", "int8"]
    assert all(0 < seconds < math.inf for seconds in times.values())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("given", "encoded"), [(20, 4), (3, 3)])
@torch.inference_mode()
def test_few_sentences_are_encoded_for_it_and_the_step_has_its_rows(given: int, encoded: int) -> None:
    _, search, wanted = searched(TEXTS[:given])

    class Counting(Around):
        def start(self, source: Tensor, source_mask: Tensor) -> Any:
            started.append(len(source))
            return super().start(source, source_mask)

        def next(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            log_probs, state = super().next(tokens, state)
            assert log_probs.size(0) == len(tokens) == 128
            sentences = log_probs.view(32, 4, -1)
            assert torch.allclose(sentences, sentences[torch.arange(32) % encoded][:, :1], atol=1e-5)
            return log_probs, state

    started: list[int] = []
    assert step_times({"fp32": Counting(search.model)}, search, wanted)["fp32"] > 0
    assert started == [encoded]


@torch.inference_mode()
def test_a_type_that_takes_long_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is the steps': one in float32 takes a second, one in the other five."""
    _, search, wanted = searched(TEXTS[:3])
    clock = [0.0]
    monkeypatch.setattr(fastest.time, "perf_counter", lambda: clock[0])

    class Taking(Around):
        def __init__(self, seconds: float) -> None:
            super().__init__(search.model)
            self.seconds, self.steps = seconds, 0

        def next(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            clock[0] += self.seconds
            self.steps += 1
            return super().next(tokens, state)

    quick, slow = Taking(1.0), Taking(5.0)
    assert step_times({"fp32": quick, "bf16": slow}, search, wanted) == {"fp32": 1.0, "bf16": 5.0}
    assert (quick.steps, slow.steps) == (3, 2)
    quick, slow = Taking(0.01), Taking(0.9)
    assert step_times({"fp32": quick, "bf16": slow}, search, wanted)["fp32"] == pytest.approx(0.01)
    assert slow.steps == 2


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and a text of three windows, the first of them blank."""
    monkeypatch.setattr("dragoman.cli.windows.WINDOW_LINES", 2)
    monkeypatch.chdir(tmp_path)
    tiny_bundle(tmp_path / "model")
    Path("text").write_text("\n\nona bek\nrem sova kip dal\nkip\nbek bek rem\n", "utf-8")
    return tmp_path


def run(*arguments: str) -> int:
    return main(["translate", "model", "text", "--device", "cpu", "--precision", "auto", *arguments])


def test_one_line_says_what_was_chosen(desk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    timed(monkeypatch, bf16=0.95, int8=0.97)
    assert run() == 0
    exact, said = capfd.readouterr()
    said = but_for_limits(said)
    assert said == "dragoman: precision: fp32 (bf16 and int8 are not clearly faster here)\n"
    assert len(exact.splitlines()) == 6
    assert run("--quiet") == 0
    assert capfd.readouterr() == (exact, "")


def test_a_translation_goes_on_in_the_type_it_was_begun_with(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    timed(monkeypatch, bf16=0.95, int8=0.5)
    allow_all(monkeypatch)
    assert run("-o", "whole", "--scores", "--quiet") == 0
    translate = Translator.translate

    def broken(translator: Translator, texts: list[str], **options: Any) -> Any:
        if "kip" in texts:
            raise OSError(5, "the cable was pulled", "model")
        return translate(translator, texts, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", broken)
        assert run("-o", "out", "--scores", "--quiet") == 1
    record = json.loads(Path("out.partial.json").read_text())
    assert (record["lines"], record["chosen"]) == (4, "int8")
    timed(monkeypatch, bf16=0.5, int8=2.0)
    capfd.readouterr()
    for other in ("int8", "fp32"):
        assert main(["translate", "model", "text", "-o", "out", "--scores", "--resume", "--precision", other]) == 2
        assert f"--precision was auto and is {other}" in capfd.readouterr().err
    assert run("-o", "out", "--scores", "--resume") == 0
    assert capfd.readouterr().err.startswith("dragoman: precision: int8 (chosen when the translation was begun)\n")
    assert Path("out").read_bytes() == Path("whole").read_bytes()


def test_what_an_older_version_began_goes_on(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, bf16=2.0, int8=2.0)
    assert main(["translate", "model", "text", "-o", "whole", "--quiet"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr("dragoman.cli.unfinished.Unfinished.publish", lambda self: (_ for _ in ()).throw(OSError(5, "no", "x")))
        assert main(["translate", "model", "text", "-o", "out", "--quiet"]) == 1
    record = json.loads(Path("out.partial.json").read_text())
    assert record.pop("chosen") == ""
    Path("out.partial.json").write_text(json.dumps(record))
    assert main(["translate", "model", "text", "-o", "out", "--quiet", "--resume"]) == 0
    assert Path("out").read_bytes() == Path("whole").read_bytes()


@pytest.mark.parametrize("damaged", ["int4", "auto", "INT8", " "])
def test_a_record_of_another_type_is_damaged(
    damaged: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The type is not one that the command line asks for: the record is what must be told of."""
    assert ("", *get_args(Precision)) == unfinished._CHOSEN
    timed(monkeypatch, bf16=2.0, int8=2.0)
    with monkeypatch.context() as patch:
        patch.setattr(unfinished.Unfinished, "publish", lambda self: (_ for _ in ()).throw(OSError(5, "no", "x")))
        assert run("-o", "out", "--quiet") == 1
    record = json.loads(Path("out.partial.json").read_text()) | {"chosen": damaged, "complete": False}
    Path("out.partial.json").write_text(json.dumps(record))
    capfd.readouterr()
    assert run("-o", "out", "--resume") == 1
    said = capfd.readouterr().err
    assert said.startswith("dragoman: ")
    assert f'out.partial.json: not the record of an unfinished translation, or damaged (ValueError("chosen {damaged!r}"))' in said


def test_an_evaluation_may_choose_too(desk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    timed(monkeypatch, bf16=0.95, int8=0.97)
    Path("test.aa").write_text("ona bek\nkip\n", "utf-8")
    Path("test.bb").write_text("ona bek\nkip\n", "utf-8")
    translate, chosen_before = Translator.translate, []

    def watched(translator: Translator, texts: list[str], **options: Any) -> Any:
        chosen_before.append(translator.choice is not None)
        return translate(translator, texts, **options)

    monkeypatch.setattr(Translator, "translate", watched)
    assert main(["evaluate", "model", "--test", "test", "--precision", "auto", "--device", "cpu", "--bootstrap", "0"]) == 0
    assert "dragoman: precision: fp32 (bf16 and int8 are not clearly faster here)\n" in capfd.readouterr().err
    assert chosen_before == [False, True], "the choice is not in the seconds"


def test_the_type_of_an_evaluation_is_in_its_record(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed(monkeypatch, bf16=0.5, int8=1.0)
    allow_all(monkeypatch)
    Path("test.aa").write_text("ona bek\nkip\n", "utf-8")
    Path("test.bb").write_text("ona bek\nkip\n", "utf-8")
    found = []
    for precision in ("fp32", "int8", "auto"):
        command = ["evaluate", "model", "--test", "test", "--precision", precision, "--device", "cpu", "--bootstrap", "0", "--json"]
        assert main(command) == 0
        found.append(json.loads(capsys.readouterr().out)["decoding"].get("precision"))
    assert found == [None, "int8", "bf16"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["translate", "model", "text", "--precision", "auto", "--engine", "ctranslate2"], "does not choose for --engine ctranslate2"),
        (["translate", "model", "text", "--precision", "fp8"], "--precision=fp8: unknown; choose among auto, fp32, bf16, int8"),
        (["serve", "model", "--precision", "auto"], "precision=auto: a server has no sentences to choose on before it answers"),
    ],
)  # fmt: skip
def test_where_there_is_no_choice_it_is_refused(arguments: list[str], fault: str, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if arguments[0] == "serve":
        pytest.importorskip("starlette")
    assert main(arguments) == 2
    assert fault in capfd.readouterr().err


def test_processes_that_share_a_text_are_told_the_type(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("RANK", "0")
    assert run() == 2
    assert "each of several processes would choose for itself; give fp32, bf16 or int8" in capfd.readouterr().err


def test_a_generator_does_not_choose() -> None:
    with pytest.raises(UsageError, match=r"precision=auto: for translating, .* choose among fp32, bf16, int8"):
        products.check_products("auto", torch.device("cpu"))
