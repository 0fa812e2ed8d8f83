"""The course's exercises: its own answers are right, and what is empty, half done or wrong is said in words."""

import importlib.util
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/course/from-scratch"
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
