"""The command line as a whole: quick help, verbs imported only when used, exit statuses, one line for an error."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman as package
from command_line import COMMAND, dragoman, environment
from dragoman.cli import VERBS, main

HEAVY = ("torch", "transformers", "tokenizers", "sacrebleu", "numpy", "safetensors")
EXPORTS = (
    *("load", "Translator", "Translation", "SearchOptions", "Transformer", "ModelConfig", "Config", "Bundle", "load_bundle", "Tokenizer"),
    "build_model",
    "__version__",
)


def imported_after(code: str) -> set[str]:
    """Names of HEAVY that a fresh interpreter holds after ``code``."""
    names = f"[name for name in {HEAVY} if name in sys.modules]"
    probe = f"import json, sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint(json.dumps({names}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env=environment(), timeout=60, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "code", ["import dragoman", "from dragoman.cli import main; main(['--help'])", "from dragoman.cli import main; main(['presets'])"]
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    assert imported_after(code) == set()


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("train", "demo")])
def test_the_help_of_a_verb_needs_no_model_code(verb: str) -> None:
    assert not imported_after(f"from dragoman.cli import main; main(['{verb}', '--help'])") & {"torch", "transformers"}


MANY_SHAPES = """
import sys
from dragoman.cli import main
sys.argv = ["dragoman", "presets"]
main()
import torch
torch.set_num_threads(1)
if not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
    sys.exit("oneDNN has no products of bfloat16 on this processor")
weight, sizes = torch.ones(128, 2000, dtype=torch.bfloat16), []
for rows in range(1, 301):
    torch.ones(rows, 128, dtype=torch.bfloat16) @ weight
    torch.ones(rows, 2000, dtype=torch.bfloat16) @ weight.t()
    if rows in (100, 300):
        sizes.append(int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]))
print((sizes[1] - sizes[0]) / 1000, file=sys.stderr)
"""


def test_products_of_many_shapes_take_no_more_memory_than_those_of_some() -> None:
    """PyTorch remembers 1,024 of them by itself, which for what is tried here is four times the bound."""
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not tell the memory of a process under /proc")
    done = subprocess.run([sys.executable, "-c", MANY_SHAPES], capture_output=True, text=True, env=environment(), timeout=120, check=False)
    if "oneDNN has no" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert float(done.stderr.splitlines()[-1]) < 60  # megabytes


def test_what_is_set_for_the_caches_of_products_stays() -> None:
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    code = (
        f"import os, sys; from dragoman.cli import main; sys.argv = ['dragoman', 'presets']; main(); print(*map(os.environ.get, {names}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment() | {names[0]: "7"}, check=True)
    assert done.stdout.splitlines()[-1] == "7 64"


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (["translate", "model"], "auto, fp32, bf16, int8"),
        (["translate", "model", "--engine", "ctranslate2"], "auto, fp32, bf16, int8"),
        (["evaluate", "model", "--test", "test"], "auto, fp32, bf16, int8"),
        (["generate", "model", "ona"], "fp32, bf16, int8"),
        (["serve", "model"], "fp32, bf16, int8"),
    ],
)
def test_a_precision_that_no_device_has_is_refused_at_once(arguments: list[str], known: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*arguments, "--precision", "fp16"]
    assert main(command) == 2
    assert capsys.readouterr().err == f"dragoman: --precision=fp16: unknown; choose among {known}\n"
    assert "torch" not in imported_after(f"from dragoman.cli import main; main({command})")


def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path) -> None:
    remove = "import os, subprocess, sys; os.rmdir(os.getcwd()); sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    command = [sys.executable, "-c", remove, *COMMAND, "translate", "model"]
    (tmp_path / "gone").mkdir()
    done = subprocess.run(command, cwd=tmp_path / "gone", capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "dragoman: the working directory is not there any more; change to one that is, with cd\n"


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("train", "translate")])
def test_what_works_in_one_process_is_refused_in_several(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "test", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main([verb, "model"]) == 2
    sentence = f"{verb} works in one process, and each of several would do all of it and write it; start it without torchrun"
    assert capsys.readouterr().err == f"dragoman: {sentence}\n"
    assert main([verb, "--help"]) == 0


def test_help_takes_less_than_two_fifths_of_a_second() -> None:
    """Of processor time, which other work on the machine changes least."""
    seconds = []
    for _ in range(4):
        before = os.times()
        done = dragoman("--help")
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert done.returncode == 0
    assert all(f"  {verb} " in done.stdout.decode() for verb in VERBS)
    assert min(seconds) < 0.4


def test_the_installed_command_is_the_module() -> None:
    script = Path(sys.executable).with_name("dragoman")
    if not script.exists():
        pytest.skip("the package is not installed as a command")
    answers = [subprocess.run([*command, "--version"], capture_output=True, text=True).stdout for command in ([script], COMMAND)]
    assert answers == [f"dragoman {package.__version__}\n"] * 2


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["nonesuch"], "nonesuch"),
        (["--nonesuch"], "--nonesuch"),
        (["translate"], "MODEL"),
        (["evaluate", "m"], "--test"),
        (["translate", "m", "--beam", "0"], "--beam"),
        (["translate", "m", "--beam", "many"], "--beam"),
        (["translate", "m", "--alpha", "1e6"], "--alpha"),
        (["score", "m", "--test", "t", "--alpha", "-11"], "--alpha"),
        (["score", "m", "--test", "t", "--alpha", "nan"], "--alpha"),
        (["evaluate", "m", "--test", "t", "--alpha", "inf"], "--alpha"),
        (["translate", "m", "--scores", "--json"], "--json has the score"),
        (["translate", "m", "--scores", "--n-best", "2"], "--n-best has the score"),
        (["average", "run", "--out", "o"], "--last"),
        (["presets", "nonesuch"], "base, A-h1"),
        (["evaluate", "m", "--test", "t", "--tokenize", "13b"], "zh"),
        (["evaluate", "m", "--test", "t", "--output", "-"], "file"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dragoman: ")
    assert err.count("\n") == 1
    assert fault in err


@pytest.mark.parametrize("verb", ["translate", "evaluate", "score", "inspect", "average"])
def test_a_missing_model_is_one_line_and_status_1(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"evaluate": ["--test", "t"], "score": ["--test", "t"], "average": ["--last", "2", "--out", str(tmp_path / "o")]}
    assert main([verb, str(tmp_path / "nowhere"), *more.get(verb, [])]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dragoman: ")
    assert err.count("\n") == 1
    assert "nowhere" in err


def test_no_verb_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "translate" in err


def test_every_option_has_a_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for verb in VERBS:
        if verb in ("train", "demo"):
            continue
        assert main([verb, "--help"]) == 0
        options = capsys.readouterr().out.split("Options:\n")[1].splitlines()
        starts = [line for line in options if line.startswith("  -")]
        assert starts
        assert [line for line in starts if len(line.split("  ", 2)[-1].split()) < 3 and len(line) < 40] == []


def test_help_names_values_and_no_types_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        assert main([verb, "--help"]) == 0
        text = capsys.readouterr().out.replace("<tab>", "")
        assert re.findall(r"<(?:str|int|float|path|list|file|dir)\b[^>]*>|list\[", text) == [], verb
    main(["translate", "--help"])
    text = capsys.readouterr().out
    assert "\n  FILE…  " in text
    assert "\n  MODEL  " in text


def test_alpha_says_its_formula_and_direction(capsys: pytest.CaptureFixture[str]) -> None:
    main(["translate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "log-probability / ((5 + n) / 6)^alpha" in text
    assert "Larger favours longer output" in text


def test_presets_are_exact_and_big_has_its_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    counts = {name: row["parameters"] for name, row in rows.items() if row["vocabulary"] == 40_960}
    published = {"base": 65_110_016, "B-dk16": 58_018_304, "C-N2": 35_684_352, "C-d1024": 167_944_192, "big": 218_300_416}
    assert {name: counts[name] for name in published} == published
    stated = [row for row in rows.values() if row["paper_millions"] and row["name"] != "big"]
    assert len(stated) >= 10
    assert all(round(row["parameters"] / 1e6) == row["paper_millions"] for row in stated)
    assert rows["big"]["paper_millions"] == 213
    assert "fits no convention" in rows["big"]["note"]

    assert main(["presets", "big", "--vocabulary", "37000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 214_245_376

    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("base ") and "65,110,016" in line for line in lines) == 1
    assert any(line.startswith("big: ") and "213" in line for line in lines)


def test_public_names_come_lazily() -> None:
    assert set(EXPORTS) <= set(package.__all__)
    assert set(EXPORTS) <= set(dir(package))
    assert {name for name in EXPORTS if getattr(package, name, None) is None} == set()
    assert package.load_bundle.__module__ == "dragoman.bundle"
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = package.nonesuch  # type: ignore[attr-defined]


def test_an_option_without_its_value_names_the_verbs_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "model", "--beam"]) == 2
    assert capsys.readouterr().err == "dragoman: Option '--beam' requires an argument (see `dragoman translate --help`)\n"
