"""`dragoman translate` with the options of its search, as a user types them."""

import json
import re
from pathlib import Path

import pytest
import torch

from command_line import but_for_limits, tiny_bundle
from dragoman.bundle import save_bundle
from dragoman.cli import main
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.rules import most_copies
from dragoman.decoding.translate import Translator
from small_bundles import copier, fx_rand

TEXT = "ona bek tilu\nrem sova\n\nkip dal ona\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "random"
    save_bundle(fx_rand(seed=2), folder)
    return folder


@pytest.fixture
def run(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Translates TEXT with the given options: status, standard output in lines, standard error."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text(TEXT, encoding="utf-8")

    def run(*options: str, text: str = "text", model: Path = model) -> tuple[int, list[str], str]:
        status = main(["translate", str(model), text, "--device", "cpu", *options])
        out, err = capfd.readouterr()
        return status, out.splitlines(), err

    return run


def test_each_option_reaches_the_search(run, model: Path) -> None:  # type: ignore[no-untyped-def]
    _, plain, _ = run()
    changes = [
        ["--max-length", "4"], ["--max-length", "0.8x"], ["--no-repeat-ngram", "1"],
        ["--sample"], ["--sample", "--seed", "7"], ["--sample", "--temperature", "2"], ["--sample", "--top-k", "2"],
        ["--sample", "--top-p", "0.3"],
        ["--mbr", "chrf"], ["--mbr", "chrf", "--samples", "3"], ["--require", "nur"], ["--forbid", plain[0].split()[0]],
    ]  # fmt: skip
    seen = []
    for options in changes:
        status, lines, err = run(*options)
        assert (status, len(lines)) == (0, 4), (options, err)
        assert lines != plain, options
        assert lines[2] == ""
        assert lines == run(*options)[1]
        seen.append(lines)
    assert len({tuple(lines) for lines in seen}) >= len(seen) - 2
    short = ["--alpha", "-8", "--beam", "16"]
    lengths = [len(line.split()) + 1 for line in run(*short, "--min-length", "2x")[1]]
    assert [length >= least for length, least in zip(lengths, (8, 6, 1, 8), strict=True)] == [True] * 4
    assert all(len(line.split()) < 3 for line in run(*short)[1])
    four = run("--max-length", "4", "--json")[1]
    assert all(len(json.loads(line)["tokens"]) <= 4 for line in four)


def test_n_best_for_each(run) -> None:  # type: ignore[no-untyped-def]
    for options in (["--beam", "4"], ["--beam", "4", "--diverse-groups", "2"], ["--beam", "4", "--diverse-groups", "4", "--diversity", "3"],
                    ["--sample", "--samples", "20", "--min-length", "2"], ["--mbr", "chrf", "--min-length", "2"],
                    ["--require", "nur"], ["--forbid", "ona"]):  # fmt: skip
        status, lines, err = run("--n-best", "2", *options)
        assert status == 0, err
        columns = [line.split("\t") for line in lines if line.split("\t")[2]]
        assert [column[0] for column in columns] == ["1", "1", "2", "2", "4", "4"]
        assert all(columns[place][2] != columns[place + 1][2] for place in (0, 2, 4))


def test_diversity_reaches_the_groups(run, model: Path) -> None:  # type: ignore[no-untyped-def]
    translator, texts = Translator.load(model, device="cpu"), Path("text").read_text("utf-8").splitlines()
    found = []
    for diversity in (0.0, 3.0):
        status, lines, err = run("--beam", "4", "--n-best", "4", "--diverse-groups", "4", "--diversity", str(diversity))
        assert status == 0, err
        options = SearchOptions(diverse_groups=4, diversity=diversity)
        made = translator.translate(texts, beam=4, n_best=4, options=options)
        expected = [[str(n), each.text] for n, one in enumerate(made, start=1) for each in (one, *one.alternatives)]
        assert [line.split("\t")[::2] for line in lines] == expected
        found.append(expected)
    assert found[0] != found[1]


def test_a_phrase_that_no_output_has_room_for_is_missed_at_once(run) -> None:  # type: ignore[no-untyped-def]
    _, plain, _ = run("--max-length", "3")
    status, lines, err = run("--max-length", "3", "--require", "nur ona bek")
    assert (status, lines) == (0, plain)
    assert "0 of 4 required terms stand in the translations" in err


def test_a_prefix_file_and_a_prefix_column(run) -> None:  # type: ignore[no-untyped-def]
    Path("begin").write_text("rem sova\n\n\nnur\n", encoding="utf-8")
    status, lines, _ = run("--prefix", "begin")
    assert status == 0
    assert lines[0].startswith("rem sova")
    assert lines[3].startswith("nur")
    assert lines[1] == run()[1][1]
    Path("both").write_text("ona bek tilu\trem sova\nrem sova\n\t\nkip dal ona\tnur\n", encoding="utf-8")
    assert run("--prefix", "column", text="both")[1] == lines


def test_a_blank_line_says_what_it_leaves_out(run) -> None:  # type: ignore[no-untyped-def]
    Path("begin").write_text("\n\nrem\n\n", encoding="utf-8")
    status, lines, err = run("--prefix", "begin")
    assert (status, lines[2]) == (0, "")
    assert but_for_limits(err) == "dragoman: warning: text, line 3: there is nothing to translate, so the prefix 'rem' is left out\n"
    status, lines, err = run("--require", "nur")
    assert (status, lines[2]) == (0, "")
    assert but_for_limits(err).splitlines() == [
        "dragoman: 3 of 4 required terms stand in the translations",
        "dragoman: warning: line 3: nur is not in the translation",
    ]


@pytest.mark.parametrize("how", ["column", "begin"])
def test_what_is_said_of_lines_before_a_fault_is_said_once(run, how: str) -> None:  # type: ignore[no-untyped-def]
    long = " ".join(["ona bek tilu"] * 90)
    sources, prefixes = ["ona", "", long, "rem", long], ["nur", "rem", "", "nonesuch", ""]
    Path("begin").write_text("".join(f"{prefix}\n" for prefix in prefixes), encoding="utf-8")
    lines = [f"{text}\t{prefix}" for text, prefix in zip(sources, prefixes, strict=True)] if how == "column" else sources
    Path("text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    status, out, err = run("--prefix", how)
    assert (status, len(out)) == (1, 3)
    whole, blank, *_ = err.splitlines()
    assert whole.startswith("dragoman: warning: text, line 3: 270 tokens")
    assert whole.endswith("translated whole")
    assert blank == "dragoman: warning: text, line 2: there is nothing to translate, so the prefix 'rem' is left out"
    assert "line 4: the prefix" in err
    assert [err.count(f"line {number}:") for number in range(1, 6)] == [0, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("beginnings", "fault"),
    [
        ("rem\n", "begin: must have as many lines as the text to translate, 4, and has 1"),
        ("rem\n\n\n\nnur", "begin: must have as many lines as the text to translate, 4, and has 5"),
        ("rem\n\n\n\udcff\n", "begin, line 4: not UTF-8"),
        ("rem\n\n\n" + "nur " * 80 + "\n", "text, line 4: the prefix has 80 tokens, and an output of at most 12 has room for 11"),
        ("\nnonesuch\n\n\n", "text, line 2: the prefix: the model's vocabulary has no 'nonesuch'"),
    ],
)
def test_a_prefix_that_cannot_be_is_one_line(run, beginnings: str, fault: str) -> None:  # type: ignore[no-untyped-def]
    Path("begin").write_text(beginnings, encoding="utf-8", errors="surrogateescape")
    status, lines, err = run("--prefix", "begin")
    assert status == 1
    assert but_for_limits(err).count("\n") == 1
    assert fault in err
    before = 3 if "line 4" in fault else 1 if "line 2" in fault else 0
    assert len(lines) == before, "the lines before one that cannot be used"


def test_a_glossary_is_kept_to_and_reported(run) -> None:  # type: ignore[no-untyped-def]
    Path("terms.tsv").write_text("ona\tnur afi\nrem sova\tgost\n", encoding="utf-8")
    status, lines, err = run("--glossary", "terms.tsv")
    assert status == 0
    assert ["nur afi" in line for line in lines] == [True, False, False, True]
    assert "gost" in lines[1]
    assert but_for_limits(err) == "dragoman: 3 of 3 required terms stand in the translations\n"
    record = json.loads(run("--glossary", "terms.tsv", "--json")[1][1])
    assert record["terms"] == [{"source": "rem sova", "target": "gost", "met": True}]
    _, _, err = run("--glossary", "terms.tsv", "--max-length", "2")
    assert but_for_limits(err).splitlines() == [
        "dragoman: 1 of 3 required terms stand in the translations",
        "dragoman: warning: line 1: ona -> nur afi is not in the translation",
        "dragoman: warning: line 4: ona -> nur afi is not in the translation",
    ]
    assert run("--glossary", "terms.tsv", "--quiet")[2] == ""


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("ona\t\n", "terms.tsv, line 1: the target side is empty"),
        ("ona bek\n", "terms.tsv, line 1: 0 tabs"),
        ("kip\tnonesuch\n", "terms.tsv, line 1: the model's vocabulary has no 'nonesuch'"),
        (None, "terms.tsv: cannot be read"),
    ],
)
def test_a_glossary_that_cannot_be_is_one_line_before_any_output(run, content: str | None, fault: str) -> None:  # type: ignore[no-untyped-def]
    if content is not None:
        Path("terms.tsv").write_text(content, encoding="utf-8")
    status, lines, err = run("--glossary", "terms.tsv")
    assert (status, lines, err.count("\n")) == (1, [], 1)
    assert fault in err


def test_loops_are_ended_counted_and_reported(tmp_path: Path, run) -> None:  # type: ignore[no-untyped-def]
    save_bundle(fx_rand(seed=2, extra_length=60, max_positions=80), tmp_path / "looping")

    def translated(*options: str) -> tuple[list[str], str]:
        status, lines, err = run("--beam", "1", *options, model=tmp_path / "looping")
        assert status == 0
        return lines, err

    (unguarded, silence), (lines, err) = translated("--repetition-guard", "0"), translated()
    assert but_for_limits(silence) == ""
    looped = [number for number, (line, before) in enumerate(zip(lines, unguarded, strict=True), start=1) if line != before]
    assert looped
    counted = f"{len(looped)} translations went round in a loop and were ended; lines: {', '.join(map(str, looped))}"
    assert but_for_limits(err) == f"dragoman: warning: {counted}\n"
    for number, (line, before) in enumerate(zip(lines, unguarded, strict=True), start=1):
        assert before.startswith(line)
        assert (most_copies([*map(hash, line.split())], 16) >= 4) == (number in looped)
    stops = [json.loads(line)["stop"] for line in translated("--json")[0]]
    assert [number for number, stop in enumerate(stops, start=1) if stop == "repetition"] == looped


def test_what_reached_the_limit_is_counted_as_evaluate_counts_it(run, model: Path, capfd: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """A limit that is given counts too, and an end that the model may have chosen itself."""
    Path("one").write_text("ona\n", encoding="utf-8")
    counts = []
    for options in ([], ["--max-length", "2"]):
        stops = [json.loads(line)["stop"] for line in run("--json", *options)[1]]
        reached = [number for number, stop in enumerate(stops, start=1) if stop == "length"]
        assert reached
        sentence = f"{len(reached)} translations reached the longest length allowed and may be cut; lines: {', '.join(map(str, reached))}"
        assert run(*options)[2] == f"dragoman: warning: {sentence}\n"
        assert run(*options, "--quiet")[2] == ""
        counts.append(len(reached))
    assert main(["evaluate", str(model), "--test", "text,text", "--device", "cpu", "--quiet"]) == 0
    assert f"cut {counts[0]} translations reached the longest length allowed" in " ".join(capfd.readouterr().out.split())
    assert run("--max-length", "1", text="one")[2].startswith("dragoman: warning: 1 translation reached the longest")


def test_why_each_translation_ended(run) -> None:  # type: ignore[no-untyped-def]
    records = [json.loads(line) for line in run("--json")[1]]
    assert records[2]["stop"] == "empty"
    for record in records[:2] + records[3:]:
        assert record["stop"] == ("length" if record["reached_limit"] else "end")
    assert {json.loads(line)["stop"] for line in run("--json", "--max-length", "2")[1]} == {"length", "empty"}


def test_an_ensemble_on_the_command_line(run, model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    save_bundle(fx_rand(seed=5), tmp_path / "second")
    status, lines, _ = run("--ensemble", str(tmp_path / "second"))
    assert status == 0
    assert lines == [
        each.text for each in Translator.load(model, device="cpu", ensemble=[tmp_path / "second"]).translate(TEXT.splitlines())
    ]
    foreign = tiny_bundle(tmp_path / "foreign")
    status, lines, err = run("--ensemble", str(foreign))
    assert (status, lines, err.count("\n")) == (1, [], 1)
    assert "foreign: cannot work together with" in err
    assert "vocabulary is another" in err


def test_an_ensemble_is_scored_and_evaluated_as_it_translates(run, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    save_bundle(fx_rand(seed=5), tmp_path / "second")
    save_bundle(fx_rand(seed=6), tmp_path / "third")
    others = ["--ensemble", "second", "--ensemble", "third"]
    Path("lines").write_text("ona bek tilu\nrem sova\nkip dal ona\n", encoding="utf-8")
    found = [json.loads(line) for line in run(*others, "--json", text="lines")[1]]
    Path("hyp").write_text("".join(f"{each['text']}\n" for each in found), encoding="utf-8")

    def asked(verb: str, *options: str) -> str:
        assert main([verb, str(model), "--test", "lines,hyp", "--device", "cpu", *options]) == 0
        return capfd.readouterr().out

    scored, alone = ([json.loads(line) for line in asked("score", "--json", *options).splitlines()] for options in (others, []))
    assert [each["log_probability"] for each in scored] == pytest.approx([each["log_probability"] for each in found], abs=1e-4)
    assert all(abs(one["log_probability"] - other["log_probability"]) > 0.01 for one, other in zip(scored, alone, strict=True))
    report = json.loads(asked("evaluate", "--json", "-o", "again", *others))
    assert (report["model"], report["exact_match"]) == (f"{model} + second + third", 100)
    assert report["system"]["parameters"] == 3 * json.loads(asked("evaluate", "--json"))["system"]["parameters"]
    assert Path("again").read_text(encoding="utf-8") == Path("hyp").read_text(encoding="utf-8")
    assert json.loads(asked("score", "--json", "--perplexity", *others))["model"] == report["model"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--top-k", "3"], "--top-k=3 is for sampling; ask for --sample, or leave --top-k out"),
        (["--n-best", "3", "--beam", "2"], "--n-best=3 with --beam=2: it must be at least 1 and at most the beam"),
        (["--temperature", "-1", "--sample"], "--temperature"),
        (["--top-p", "2", "--sample"], "--top-p"),
        (["--max-length", "1.5"], "--max-length"),
        (["--max-length", "0"], "--max-length"),
        (["--min-length", "x"], "--min-length"),
        (["--max-length", "9" * 400 + "x"], f"--max-length': {'9' * 40}…: of more than 30 characters"),
        (["--min-length", "9" * 5000], f"--min-length': {'9' * 40}…: of more than 30 characters"),
        (["--mbr", "bleu"], "--mbr=bleu: unknown; known: chrf"),
        (["--sample", "--beam", "4"], "--beam=4 with --sample: samples are drawn one by one"),
        (["--mbr", "chrf", "--beam", "4"], "--beam=4 with --mbr: samples are drawn one by one; leave one of the two out"),
        (
            ["--mbr", "chrf", "--n-best", "40"],
            "--n-best=40 of 32 samples: it must be at least 1 and at most the samples; ask for more with --samples",
        ),
        (
            ["--mbr", "chrf", "--require", "nur"],
            "--mbr: samples and diverse groups cannot be made to hold phrases; leave --require out, or --mbr",
        ),
        (["--diverse-groups", "3"], "--diverse-groups=3 with --beam=4"),
        (["--forbid", ""], "dragoman: --forbid='': give phrases that are not empty, one or more"),
        (["--require", "nur", "--require", " "], "dragoman: --require=' ': give phrases that are not empty, one or more"),
        (["--forbid", "\udcff"], "--forbid: '\\udcff' is not text"),
        (["--require", "\udcff"], "--require: '\\udcff' is not text"),
        (
            ["--min-length", "9", "--max-length", "5"],
            "line 1: --min-length asks for 9 tokens and at most 5 are allowed; lower it or raise --max-length",
        ),
        (
            ["--require", "ona", "--forbid", "ona"],
            "dragoman: --require: 'ona' holds 'ona', which is forbidden by --forbid; leave it out on",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_in_one_line(run, options: list[str], fault: str) -> None:  # type: ignore[no-untyped-def]
    status, lines, err = run(*options)
    assert status == 2
    assert lines == []
    assert err.count("\n") == 1
    assert fault in err
    assert len(err) < 300


@pytest.mark.parametrize("name", ["decoder.layers.0.self_attn.w_q.weight", "decoder.layers.0.norm1.weight"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_damaged_weights_are_one_line_in_every_precision(tmp_path: Path, run, name: str, precision: str) -> None:  # type: ignore[no-untyped-def]
    bundle = fx_rand(seed=2)
    with torch.no_grad():
        bundle.model.get_parameter(name).fill_(torch.nan)
    save_bundle(bundle, tmp_path / "damaged")
    status, lines, err = run("--precision", precision, model=tmp_path / "damaged")
    assert (status, lines, err.count("\n")) == (1, [], 1)
    assert "the model's weights are damaged" in err
    assert "use an undamaged copy" in err


def test_a_model_that_copies_keeps_to_what_is_asked_in_byte_pairs(tmp_path: Path, run) -> None:  # type: ignore[no-untyped-def]
    save_bundle(copier(), tmp_path / "copier")
    Path("text").write_text("ona bek rem\nsova 🐟 kip\n", encoding="utf-8")
    Path("begin").write_text("ona be\n\n", encoding="utf-8")
    assert run("--prefix", "begin", model=tmp_path / "copier")[1] == ["ona bek rem", "sova 🐟 kip"]
    _, lines, _ = run("--forbid", "🐟", "--forbid", "bek", model=tmp_path / "copier")
    assert not any("🐟" in line or re.search(r"\bbek\b", line) for line in lines)
    _, lines, err = run("--require", "tilu 🦤", model=tmp_path / "copier")
    assert all("tilu 🦤" in line for line in lines)
    assert "2 of 2 required terms" in err
