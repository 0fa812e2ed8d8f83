"""Options that several verbs share, each with the sentence that ``--help`` prints."""

from pathlib import Path
from typing import Annotated, get_args

import typer


def more_than_zero(value: float | None) -> float | None:
    """The value of an option; what is not above 0 is refused with the option's name."""
    if value is not None and not value > 0:
        raise typer.BadParameter("must be more than 0")
    return value


def known_products(value: str) -> str:
    """The value of an option; what is no type of products on any device is refused before anything is loaded. The verb judges auto."""
    from dragoman.decoding.options import Precision, check_precision_name

    if value != "auto":
        check_precision_name(value, known=get_args(Precision))
    return value


def known_translation_products(value: str) -> str:
    """As `known_products`, where auto chooses one."""
    from dragoman.decoding.options import AskedPrecision, check_precision_name

    check_precision_name(value, known=get_args(AskedPrecision))
    return value


ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A run folder (its best checkpoint), a checkpoint folder, or a bundle.")]
_TEST = typer.Option(
    "--test",
    metavar="PATH",
    help="Parallel text: a prefix (PREFIX.en and PREFIX.de, also .gz, .xz, .zst), SOURCE_FILE,TARGET_FILE, a .tsv or a .jsonl file; "
    "or a treebank (.mrg, .ptb, .trees). May be given several times; they are concatenated.",
)
TestPaths = Annotated[list[str], _TEST]
TestSets = Annotated[list[str] | None, _TEST]
TextFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="Text in UTF-8, one sentence a line, plain or .gz, .xz, .zst; - is standard input. Default: standard input.",
    ),
]
Translations = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Where translations go, not a file that is read; - is standard output (default)."),
]
Scores = Annotated[
    bool,
    typer.Option(
        "--scores",
        help="Put the score (log-probability over the length penalty) and a tab before each line; --n-best and --json have it anyway.",
    ),
]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Write one JSON object for each line: text, scores, tokens and, with --n-best, alternatives.")
]
Beam = Annotated[
    int | None,
    typer.Option(
        "--beam",
        metavar="K",
        min=1,
        help="Hypotheses kept at each step of the search; 1 is greedy. Default: the model's own setting (4 in the paper).",
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        "--alpha",
        metavar="A",
        min=-10,
        max=10,
        help="Exponent of the length penalty: a hypothesis of n tokens, end token included, scores log-probability / ((5 + n) / 6)^alpha. "
        "Larger favours longer output, 0 is the plain log-probability. Default: the model's own setting (0.6 in the paper).",
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        metavar="N",
        min=1,
        help="Longest output in tokens, end token included. Default: the source's tokens plus the model's extra_length (50 in the paper).",
    ),
]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="Where to compute: auto (a GPU where there is one), cpu, cuda, cuda:N or mps.")
]
Products = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="TYPE",
        callback=known_products,
        help="Of the matrix products: fp32; bf16; or int8, on a CPU. The last two are faster where the processor has them, change some "
        "outputs, and let lines that are translated together touch each other's a little. auto is for translate and evaluate alone.",
    ),
]
TranslationProducts = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="TYPE",
        callback=known_translation_products,
        help="Of the matrix products: fp32; bf16; int8, on a CPU; or auto. bf16 and int8 are faster where the processor has them, change "
        "some outputs, and let lines that are translated together touch each other's a little. auto takes one of them if it is measured "
        "to be clearly faster here and changes the scores of the first lines by next to nothing, else fp32, and says which.",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="What computes: torch, or ctranslate2 (`pip install 'dragoman[ctranslate2]'`), for which the model is exported at the first "
        "use into its own folder. The text is handled alike; ctranslate2 finds the same greedy outputs, and with a beam it searches in its "
        "own way and its outputs are ranked by --alpha.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text; off by default.")]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Keep standard error empty: no notices, no progress; what stops the program is still said."),
]

# Of `dragoman translate`

Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with an interrupted translation into -o FILE: the same text, model and options; only what is missing is translated. "
        "Without one, begin.",
    ),
]
AlignFile = Annotated[
    Path | None,
    typer.Option(
        "--align",
        metavar="FILE",
        help="Write an alignment for each line in: `i-j` for source word i and output word j, from 0, where words are what stands between "
        "white space; from the attention of the head that was trained to align, else of --align-layer. With --json the objects have it "
        "too. Default: none.",
    ),
]
AlignLayer = Annotated[
    int | None,
    typer.Option(
        "--align-layer",
        metavar="N",
        min=1,
        help="The decoder layer, from 1, whose attention, averaged over its heads, gives alignments. Default: the head that was trained "
        "to align (`dragoman train --alignments`), if the model has one, else the last but one.",
    ),
]
AttentionPath = Annotated[
    Path | None,
    typer.Option(
        "--attention",
        metavar="FILE.npz",
        help="Write the attention to the source of every decoder layer and head as arrays: for line N `N.attention` (layers, heads, output "
        "tokens, source tokens) and the tokens `N.target` and `N.source`. Default: none.",
    ),
]

# Of `dragoman train`

Paths = list[str] | None
TrainingData = Annotated[
    Paths,
    typer.Option(
        "--train",
        metavar="PATH",
        help="Parallel text to learn from: a prefix (PREFIX.en and PREFIX.de, also .gz, .xz, .zst), SOURCE_FILE,TARGET_FILE, a .tsv, "
        "a .jsonl file or a treebank (.mrg, .ptb, .trees); for a model of one sequence a text file, also .gz, .xz, .zst. May be given "
        "several times; they are concatenated, or seen and marked as data.weights and data.tags say.",
    ),
]
AlignmentFiles = Annotated[
    Paths,
    typer.Option(
        "--alignments",
        metavar="FILE",
        help="Word alignments of a --train, from which one head learns to align (training.alignment_weight): a line `0-0 1-2` for each "
        "pair, source word and target word from 0, where words are what stands between white space; also .gz, .xz, .zst. Once for each "
        "--train, in their order, an empty name for one that has none. Default: none.",
    ),
]
TrainingDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="Where to compute: auto (a GPU where there is one), cpu, cuda, cuda:N or mps; with torchrun auto, cpu or cuda. Default: auto.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="TYPE",
        help="auto, fp32, bf16 or fp16. Default: auto (bf16 on a GPU that has it and a CPU that is faster with it, fp16 on a GPU that "
        "has only that).",
    ),
]
MaxMinutes = Annotated[
    float | None,
    typer.Option(
        "--max-minutes",
        metavar="M",
        callback=more_than_zero,
        help="Minutes after which to stop, evaluations and earlier parts of the run included; the last evaluation comes on top.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Train nothing and leave nothing behind: print what the run would take, in parameters, memory, steps and, measured on a few "
        "updates, time.",
    ),
]

ValidationData = Annotated[
    Paths, typer.Option("--valid", metavar="PATH", help="Text for the evaluations, in the same forms. Default: none.")
]
ResumedRun = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the run in --out from its newest checkpoint; where there is none, from its beginning, and if updates are lost by "
        "that it is said, under --quiet too.",
    ),
]
StartFrom = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="MODEL",
        help="Go on from a model (a run folder, a checkpoint or a bundle) in a new run: its sizes, vocabulary and weights, and the "
        "training settings of the preset it was made with unless others are given; optimiser, schedule and data begin anew.",
    ),
]
Overrides = Annotated[
    Paths,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting over the preset's and the file's, such as training.warmup_steps=400; repeatable. "
        "training.batch_tokens=auto takes the largest batches that fit.",
    ),
]
TensorBoardFiles = Annotated[
    bool | None,
    typer.Option("--tensorboard/--no-tensorboard", help="Whether TensorBoard's files are written too, into the run folder. Default: no."),
]
