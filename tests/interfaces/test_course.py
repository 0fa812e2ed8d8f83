"""The course's exercises: its own answers are right, and what is empty, half done or wrong is said in words."""

import importlib.util
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.bundle import save_bundle
from small_bundles import fx_rand

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "docs/course/from-scratch"
PAGE = FOLDER.parent / "from-scratch.md"
HEAD = "import math\nimport torch\n"
ANSWERS = re.findall(r"^```python solution\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
NAMES = [re.match(r"def (\w+)", answer)[1] for answer in ANSWERS]  # type: ignore[index]


Checked = Callable[..., tuple[int, str, str]]


@pytest.fixture
def checked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Checked:
    """``python check.py ARGUMENTS`` without a process of its own: its exit status, and what it writes."""

    def checked(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [str(FOLDER / "check.py"), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(FOLDER / "check.py"), run_name="__main__")
        out, err = capsys.readouterr()
        if isinstance(ended.value.code, str):  # which the interpreter says at its end
            return 1, out, f"{err}{ended.value.code}\n"
        return int(ended.value.code or 0), out, err

    return checked


def test_the_page_has_an_answer_to_each_exercise_and_all_are_right(tmp_path: Path) -> None:
    """As a reader starts it."""
    exercises = re.findall(r"^def (\w+)", (FOLDER / "exercises.py").read_text(encoding="utf-8"), re.M)
    assert exercises == NAMES
    (tmp_path / "mine.py").write_text(HEAD + "\n\n".join(ANSWERS), encoding="utf-8")
    command = [sys.executable, str(FOLDER / "check.py"), "--file", str(tmp_path / "mine.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.stdout.split("\n") == [*(f"{number}. {name}: right" for number, name in enumerate(NAMES, start=1)), "8 of 8 right", ""]
    assert (result.returncode, result.stderr) == (0, "")


def test_an_answer_that_is_written_into_the_file_of_exercises_needs_nothing_more(tmp_path: Path, checked: Checked) -> None:
    text = (FOLDER / "exercises.py").read_text(encoding="utf-8")
    for name, answer in zip(NAMES, ANSWERS, strict=True):
        body, head = answer.partition(":\n")[2], text.index(f"def {name}(")
        text = text[:head] + text[head:].replace("    raise NotImplementedError\n", body, 1)
    (tmp_path / "exercises.py").write_text(text, encoding="utf-8")
    status, out, err = checked("--file", tmp_path / "exercises.py")
    assert (status, out.splitlines()[-1:], err) == (0, ["8 of 8 right"], ""), out


def test_an_empty_file_of_exercises_is_not_written_yet(checked: Checked) -> None:
    status, out, err = checked()
    assert out.splitlines() == [
        *(f"{number}. {name}: not written yet" for number, name in enumerate(NAMES, start=1)),
        "0 of 8 right",
    ]
    assert (status, err) == (1, "")


SLIPS = [
    ("/ math.sqrt(query.size(-1))", "", "1. attention: the scores are not divided by √d_k"),
    ("math.sqrt(query.size(-1))", "query.size(-1)", "1. attention: the scores are divided by d_k instead of its root"),
    ("scores.softmax(-1)", "scores.softmax(0)", "1. attention: the softmax goes over the queries; it must go over the keys"),
    ("~mask", "mask", "1. attention: the mask is used the wrong way round"),
    ("if mask is not None", "if False", "1. attention: the mask is not used"),
    ("return weights @ value, weights", "return weights @ value", "1. attention: it must return 2 values, and returns Tensor"),
    ("return weights @ value, weights", "pass", "1. attention: it returns nothing; end it with a return"),
    ("@ value, weights", "@ key, weights", "1. attention: of what it returns, the first: the shape is (3, 8) and should be (3, 4)"),
    ("key.T / math", "keys.T / math", "1. attention: it ends in NameError in line 4: name 'keys' is not defined"),
    (" @ w_o", "", "2. multi_head: the last product with w_o is missing"),
    ("chunk(n_heads,", "chunk(1,", "2. multi_head: it is one head"),
    (".tril()", ".triu()", "3. causal_mask: it shows the future and hides the past"),
    (".tril()", ".tril(-1)", "3. causal_mask: a position may look at itself, too"),
    (", dtype=torch.bool).tril()", ").tril()", "3. causal_mask: it must return True and False (torch.bool), and returns torch.float32"),
    ("-1).flatten(1)", "1).flatten(1)", "4. positions: all sines stand before all cosines"),
    ("torch.arange(length)[", "torch.arange(1, length + 1)[", "4. positions: the first position is 0"),
    ("norm1(x + attend(x))", "x + attend(norm1(x))", "5. encoder_layer: "),
    (
        "x = norm1(x + attend(x))\n    return norm2(x + feed_forward(x))",
        "x = x + attend(norm1(x))\n    return x + feed_forward(norm2(x))",
        "5. encoder_layer: the norm comes before each sub-layer",
    ),
    (".mean(-1)).mean()", ".mean(-1)).sum()", "6. smoothed_loss: it is the sum over the tokens"),
    ("epsilon * log_probs.mean(-1)", "0", "6. smoothed_loss: "),
    ("min(step**-0.5, step * warmup_steps**-1.5)", "step**-0.5", "7. learning_rate: the warm-up is missing"),
    ("return d_model**-0.5 * min", "return (step != 4000) * d_model**-0.5 * min", "7. learning_rate: 0 should be 0.000698771"),
    ("scores[:, None] + ", "", "8. beam_step: the scores so far are not added"),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "said"), SLIPS, ids=[f"{said[0]}-{number}" for number, (_, _, said) in enumerate(SLIPS)])
def test_a_slip_is_named(right: str, wrong: str, said: str, in_process: "Check") -> None:
    text = "\n\n".join(ANSWERS)
    assert text.count(right) == 1
    assert in_process(text.replace(right, wrong), int(said[0])).startswith(said)


def test_a_function_that_leaves_or_takes_something_else_is_named(in_process: "Check") -> None:
    said = "1. attention: it ends in TypeError: attention() takes 1 positional argument but 3 were given\n"
    assert in_process("def attention(query):\n    return query\n", 1) == said
    assert in_process("def attention(*given):\n    raise SystemExit(0)\n", 1) == "1. attention: it ends in SystemExit in line 4: 0\n"


WRONG = [
    ("pass", "it returns nothing; end it with a return"),
    ("return [1.0]", "it must return a tensor, and returns list"),
    ("return torch.zeros(7)", "the shape is (7,) and should be (7, 6)"),
    ("return torch.full((7, 6), torch.nan)", "some numbers are not finite (nan or inf)"),
    ("return torch.zeros(7, 6).to_sparse()", "what it returns cannot be compared (NotImplementedError: Could not run"),
    ("raise ValueError('one\\ntwo')", "it ends in ValueError in line 4: one"),
    ("return positions(*args)", "it ends in RecursionError in line 4: maximum recursion depth exceeded"),
    ("return torch.zeros(1).to_sparse() != 0", "it ends in NotImplementedError in line 4: Could not run"),
    ("raise NotImplementedError('soon')", "not written yet"),
    ("raise KeyboardInterrupt", "it was stopped in line 4; if it never came to an end, look for a loop that does not"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "said"), WRONG, ids=[body.partition("(")[0] for body, _ in WRONG])
def test_what_is_empty_half_done_or_wrong_is_one_line_in_words(body: str, said: str, in_process: "Check") -> None:
    found = in_process(f"def positions(*args):\n    {body}\n", 4)
    assert found.startswith(f"4. positions: {said}")
    assert found.count("\n") == 1


UNREAD = [
    (b"def attention(q):\n\ndef other():\n    pass\n", ", line 3: Python does not understand this line (expected an indented block"),
    (b"x = '\xff'\n", ", line 1: Python does not understand this line ((unicode error) 'utf-8' codec can't decode"),
    (b"raise KeyboardInterrupt\n", ", line 1: reading the file ends in KeyboardInterrupt; mend it first"),
    (b"raise ValueError('one\\ntwo')\n", ", line 1: reading the file ends in ValueError: one; mend it first"),
]


@pytest.mark.parametrize(("content", "said"), UNREAD, ids=[said.split("(")[-1][:22] for _, said in UNREAD])
def test_a_file_that_is_no_program_is_one_sentence(content: bytes, said: str, in_process: "Check") -> None:
    in_process.path.write_bytes(content)
    with pytest.raises(SystemExit, match=re.escape(f"{in_process.path}{said}")) as left:
        in_process.module.read(in_process.path)
    assert "\n" not in str(left.value)


def test_a_file_of_another_kind_is_named(in_process: "Check", tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"a name that ends in \.py"):
        in_process.module.read(tmp_path / "mine.txt")


def test_a_python_without_dragoman_is_told_so(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-I", str(FOLDER / "check.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(r".* has no torch; run check.py with the Python into which Dragoman is installed\n", result.stderr)


class Check:
    """check.py in this process, for one exercise at a time."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        spec = importlib.util.spec_from_file_location("check", FOLDER / "check.py")
        assert spec is not None
        assert spec.loader is not None
        self.module, self.path, self.capsys = importlib.util.module_from_spec(spec), folder / "mine.py", capsys
        spec.loader.exec_module(self.module)

    def __call__(self, text: str, number: int) -> str:
        self.path.write_text(HEAD + text, encoding="utf-8")
        self.module.report(number, self.module.read(self.path))
        return self.capsys.readouterr().out


@pytest.fixture
def in_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    return Check(tmp_path, capsys)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, checked: Checked) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(f"{HEAD}import nothing_of_the_kind\n", encoding="utf-8")
    status, _, errors = checked("--file", mine)
    assert (status, errors.count("\n")) == (1, 1)
    assert "line 3: reading the file ends in ModuleNotFoundError" in errors
    mine.write_text(f"{HEAD}raise SystemExit(0)\n", encoding="utf-8")
    status, _, errors = checked("--file", mine)
    assert (status, errors.count("\n")) == (1, 1)
    assert "line 3: reading the file ends in SystemExit" in errors
    status, _, errors = checked("--file", tmp_path / "gone.py")
    assert (status, errors.count("\n")) == (1, 1)
    assert "there is no such file" in errors


def test_a_file_that_is_not_python_is_one_sentence(tmp_path: Path) -> None:
    """As a reader starts it."""
    (tmp_path / "mine.py").write_text(f"{HEAD}def attention(:\n    pass\n", encoding="utf-8")
    command = [sys.executable, str(FOLDER / "check.py"), "--file", str(tmp_path / "mine.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (
        1,
        f"{tmp_path / 'mine.py'}, line 3: Python does not understand this line (invalid syntax); mend it first\n",
    )


def test_a_half_done_exercise_is_told_from_the_rest(tmp_path: Path, checked: Checked) -> None:
    (tmp_path / "mine.py").write_text(HEAD + "\n\n".join(ANSWERS[:3]), encoding="utf-8")
    status, out, errors = checked("--file", tmp_path / "mine.py")
    lines = out.split("\n")
    assert (status, errors) == (1, "")
    assert lines[2:5] == [
        "3. causal_mask: right",
        "4. positions: the file has no function positions",
        "5. encoder_layer: the file has no function encoder_layer",
    ]
    assert lines[-2] == "3 of 8 right"


def test_the_pictures_are_what_the_program_draws_and_the_pages_show_them() -> None:
    spec = importlib.util.spec_from_file_location("figures", FOLDER.parent / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    shown = {name for page in FOLDER.parent.glob("*.md") for name in re.findall(r"\(figures/([\w-]+)\.svg\)", page.read_text("utf-8"))}
    assert shown == set(figures.PICTURES) == {path.stem for path in (FOLDER.parent / "figures").glob("*.svg")}
    for name, draw in figures.PICTURES.items():
        kept = (FOLDER.parent / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert re.sub(r"[\d.]+", "", draw()) == re.sub(r"[\d.]+", "", kept), name
        numbers = [[float(number) for number in re.findall(r"\d+\.?\d*", text)] for text in (draw(), kept)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.011), name


def benchmark(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((PROJECT / f"benchmarks/{name}.json").read_text(encoding="utf-8"))
    return facts


def test_the_page_of_distances_says_what_was_measured() -> None:
    page, facts = (FOLDER.parent / "recurrence-and-distance.md").read_text("utf-8"), benchmark("distance")
    kinds = ("LSTM", "LSTM with attention", "Transformer")
    for row in facts["rows"]:
        cells = [f"{row[kind]['right']:.0%}" + (f" ({row[kind]['seconds']:.1f} s)" if row[kind]["learnt"] else "") for kind in kinds]
        assert f"| {row['distance']} | {' | '.join(cells)} |" in page, row["distance"]
    assert f"{facts['seconds']:g} seconds" in page


def test_the_page_of_sums_and_norms_says_what_was_measured() -> None:
    page, facts = (FOLDER.parent / "residual-and-norm.md").read_text("utf-8"), benchmark("residual_and_norm")
    for name in next(iter(facts["depths"].values())):
        cells = [f"{at[name]['right']:.0%}" for at in facts["depths"].values()]
        assert f"| {name} | {' | '.join(cells)} |" in page, name
    assert f"after {facts['updates']} updates" in page


def test_the_page_of_the_feed_forward_network_says_what_was_measured() -> None:
    page, facts = (FOLDER.parent / "feed-forward.md").read_text("utf-8"), benchmark("feed_forward")
    for width, shares in facts["right"].items():
        cells = [f"{share:.0%}" for share in shares.values()]
        assert f"| {'none' if width == '0' else width} | {' | '.join(cells)} |" in page, width
    assert "| d_ff | " + " | ".join(next(iter(facts["right"].values()))).replace(" |", " updates |", 1) + " |" in page


@pytest.mark.parametrize("name", ["distance", "residual_and_norm", "feed_forward"])
def test_a_small_run_of_the_scripts_has_the_form_of_their_results(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {
        "distance": ["--distances", "3", "--seconds", "0.1", "--rates", "0.003"],
        "residual_and_norm": ["--layers", "1", "--updates", "2"],
        "feed_forward": ["--widths", "0", "8", "--updates", "1", "2"],
    }
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *few[name], "--output", str(tmp_path / "result.json")])
    runpy.run_path(str(PROJECT / "benchmarks" / f"{name}.py"), run_name="script")["main"]()
    torch.set_num_threads(threads)
    found, kept = json.loads((tmp_path / "result.json").read_text("utf-8")), benchmark(name)
    assert json.loads(capsys.readouterr().out) == found
    assert found.keys() == kept.keys()
    if name == "feed_forward":
        assert [list(shares) for shares in found["right"].values()] == [["1", "2"], ["1", "2"]]
        return
    parts = [facts["rows"][0] if name == "distance" else next(iter(facts["depths"].values())) for facts in (found, kept)]
    assert parts[0].keys() == parts[1].keys()


def test_without_residual_and_norm_a_layer_is_its_sublayers_alone() -> None:
    script = runpy.run_path(str(PROJECT / "benchmarks/residual_and_norm.py"))
    x, norm, dropout = torch.randn(2, 3, 8), torch.nn.LayerNorm(8), torch.nn.Identity()
    wanted = (norm(x + 2 * x), norm(2 * x), x + 2 * x, 2 * x)
    for around, expected in zip(script["VARIANTS"].values(), wanted, strict=True):
        assert torch.equal(around(x, lambda y: 2 * y, norm=norm, dropout=dropout), expected)


def test_the_numbers_of_heads_are_those_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row of weights a token's whole attention, to the rounding; and the script makes the same of another model."""
    kept = json.loads((FOLDER.parent / "heads.json").read_text("utf-8"))
    for kind, queries in (("encoder", "pieces"), ("cross", "translation")):
        weights = np.array(kept[kind])
        assert weights.shape == (4, 4, len(kept[queries]), len(kept["pieces"]))
        assert np.abs(weights.sum(-1) - 1).max() < 0.001 * len(kept["pieces"])
    save_bundle(fx_rand(), tmp_path / "model")
    monkeypatch.setattr(sys, "argv", ["heads.py", str(tmp_path / "model"), "--text", "ona bek", "--output", str(tmp_path / "heads.json")])
    runpy.run_path(str(FOLDER.parent / "heads.py"), run_name="script")["main"]()
    found = json.loads((tmp_path / "heads.json").read_text("utf-8"))
    assert found.keys() == kept.keys()
    assert np.array(found["encoder"]).shape == (2, 2, 3, 3)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 8
    assert re.fullmatch(r"encoder 1\.1: strongest weight 0\.\d\d  (itself|the [a-z ]+) at \d+%", said[0])
