"""What a server answers is what the command line prints for the same line, whoever else is asking; a stream ends where both end."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dragoman.bundle import save_bundle
from dragoman.decoding.translate import Translator
from serving import Client, serving
from small_bundles import WORDS, fx_toy, random_sentences


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "toy"
    bundle = fx_toy()
    config = bundle.config.with_values(data={"source": "aa", "target": "bb"})
    save_bundle(type(bundle)(config, bundle.model, bundle.source_tokenizer, bundle.target_tokenizer, {"step": 100}), folder)
    return folder


def test_fifty_sentences_from_eight_clients_at_once(toy: Path) -> None:
    sentences = random_sentences(50, longest=8, words=len(WORDS), seed=3)
    translator = Translator.load(toy, device="cpu")
    expected = [translator.translate([sentence], n_best=3) for sentence in sentences]

    def ask(client: Client, place: int) -> tuple[str, list[str]]:
        if place % 5:
            answer = client.post("/translate", {"q": sentences[place], "source": "aa", "target": "bb", "alternatives": place % 3}).json
            return answer["translatedText"], answer.get("alternatives", [])
        start = max(place - 3, 0)
        texts = client.post("/translate", {"q": sentences[start : place + 1], "source": "aa", "target": "bb"}).json["translatedText"]
        assert len(texts) == place + 1 - start
        return texts[-1], []

    with serving(toy, device="cpu") as client, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda place: ask(client, place), range(50)))
        metrics = client.get("/metrics").body.decode()
    assert [text for text, _ in found] == [each[0].text for each in expected]
    for place, (_, alternatives) in enumerate(found):
        assert alternatives == ([each.text for each in expected[place][0].alternatives[: place % 3]] if place % 5 else [])
    texts, batches = (
        float(next(line for line in metrics.splitlines() if line.startswith(f"dragoman_batch_size_{name}")).split()[1])
        for name in ("sum", "count")
    )
    assert texts == 40 + 1 + 4 * 9
    assert batches < texts


def test_a_stream_ends_with_the_translation_and_never_takes_back_what_is_stable(toy: Path) -> None:
    sentence = " ".join(WORDS[:6])
    with serving(toy, device="cpu") as client:
        fields = {"q": sentence, "source": "aa", "target": "bb", "n_best": 2}
        (whole,) = client.post("/api/v1/translate", fields).json["translations"]
        answer = client.post("/api/v1/stream", fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")
    events = [dict(line.split(": ", 1) for line in block.split("\n")) for block in answer.body.decode().split("\n\n") if block]
    names = [event["event"] for event in events]
    data = [json.loads(event["data"]) for event in events]
    assert names == ["start", *["step"] * (len(names) - 2), "done"]
    assert data[0]["sentences"] == [{"source": sentence, "pieces": WORDS[:6], "unk": []}]
    assert data[-1] == whole
    steps = data[1:-1]
    assert [step["i"] for step in steps] == list(range(1, len(steps) + 1))
    assert len(steps) >= len(whole["sentences"][0]["tokens"])
    tokens = whole["sentences"][0]["tokens"][:-1]
    for step in steps:
        assert step["pieces"][: step["stable"]] == tokens[: step["stable"]]
        assert whole["text"].startswith(step["stable_text"])
        scores = [score for _, score in step["beams"]]
        assert scores == sorted(scores, reverse=True)
    assert steps[-1]["best"] == whole["text"]


def test_scores_alignments_and_candidates_are_the_translators(toy: Path) -> None:
    sentence = " ".join(WORDS[3:8])
    translator = Translator.load(toy, device="cpu")
    (expected,) = translator.translate([sentence], beam=5, alpha=1.0, n_best=2)
    fields = {"q": sentence, "source": "aa", "target": "bb"}
    with serving(toy, device="cpu") as client:
        asked = {**fields, "beam": 5, "alpha": 1.0, "n_best": 2, "alignment": True}
        (found,) = client.post("/api/v1/translate", asked).json["translations"]
        (scored,) = client.post("/api/v1/score", {**fields, "translation": expected.text}).json["scores"]
        errors = [
            client.post("/api/v1/translate", {**fields, **wrong}).error
            for wrong in ({"beam": 17}, {"n_best": 3, "beam": 2}, {"max_length": "3x"}, {"max_length": 0}, {"beams": 2})
        ]
        unknown = [client.post(path, {**fields, "translation": "A", "zz": 1}).error for path in ("/api/v1/stream", "/api/v1/score")]
        short = client.post("/api/v1/translate", {**fields, "max_length": 3})
        uneven = client.post("/api/v1/score", {**fields, "translation": ["A", "B"]})
    (line,) = found["sentences"]
    assert (line["text"], line["tokens"], line["stop"]) == (expected.text, list(expected.tokens), expected.stop)
    assert line["score"] == pytest.approx(expected.score, abs=1e-5)
    assert line["token_scores"] == pytest.approx(expected.token_scores, abs=1e-5)
    assert [each["text"] for each in line["candidates"]] == [each.text for each in expected.alternatives]
    assert len(line["alignment"]) == len(expected.text.split())
    assert scored["log_probability"] == pytest.approx(expected.log_probability, abs=1e-4)
    assert errors == [
        "Invalid request: beam parameter must be <= 16",
        "Invalid request: n_best (3) must be at most beam (2)",
        "Invalid request: max_length must be a number of tokens from 1 to 9999, or at most 2x the source's",
        "Invalid request: max_length must be a number of tokens from 1 to 9999, or at most 2x the source's",
        "Invalid request: unknown field beams; did you mean beam?",
    ]
    assert [each.partition(";")[0] for each in unknown] == [
        "Invalid request: unknown field translation",
        "Invalid request: unknown field zz",
    ]
    assert len(short.json["translations"][0]["sentences"][0]["tokens"]) == 3
    assert short.headers["x-warnings"] == "length"
    assert uneven.error == "Invalid request: 1 texts in q but 2 in translation"


def test_a_watch_sees_every_step_changes_nothing_and_may_end_a_search(toy: Path) -> None:
    translator = Translator.load(toy, device="cpu")
    sentences = random_sentences(5, longest=8, seed=1)
    seen: list[int] = []
    watched = translator.translate(sentences, watch=lambda live, finished: seen.append(len(finished)))
    assert watched == translator.translate(sentences)
    assert set(seen) == {5}
    assert len(seen) >= max(len(each.tokens) for each in watched)

    def stop(live: object, finished: object) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        translator.translate(sentences, watch=stop)
