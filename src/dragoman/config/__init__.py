"""The settings of a model, its data, its training and its decoding: frozen, checked, one sentence a field.

The defaults are the paper's base model and recipe (Sections 3 and 5). Values come, later over earlier, from a preset, a TOML file,
and dotted overrides such as ``training.warmup_steps=400``. An unknown key is an error that names the nearest one.
"""

import difflib
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import Field, PlainValidator, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dragoman.config.model import Architecture, ModelConfig
from dragoman.config.settings import LARGEST, Settings
from dragoman.errors import UsageError

__all__ = [
    "LARGEST",
    "Architecture",
    "Config",
    "DataConfig",
    "DecodingConfig",
    "ModelConfig",
    "Settings",
    "TrainingConfig",
    "check",
    "layer",
    "list_for_shell",
    "merge",
]

_NO_RECORD = "the file name {!r} is not UTF-8, so no record can name it; rename the file"


def _budget(value: object) -> object:
    if value == "auto" or (type(value) is int and value > 0):
        return value
    raise PydanticCustomError("budget", "input should be a valid integer greater than 0, or auto")


class DataConfig(Settings):
    """Section 5.1: what is learnt from, and how text becomes ids."""

    source: str = Field("", pattern=r"^[\w-]*$", description="Language code of the source side, or of the only one, such as en.")
    target: str = Field("", pattern=r"^[\w-]*$", description="Language code of the target side, such as de.")
    train: tuple[str, ...] = Field(
        (),
        description="Training corpora: a prefix, a .tsv or .jsonl file, a treebank (.mrg, .ptb, .trees), or SOURCE_FILE,TARGET_FILE; for "
        "a model of one sequence text files; concatenated.",
    )
    valid: tuple[str, ...] = Field((), description="Validation corpora, in the same forms.")
    weights: tuple[Annotated[float, Field(gt=0, le=1000)], ...] = Field(
        (), description="For each training corpus, how many times each of its pairs is seen in an epoch; once where nothing is given."
    )
    alignments: tuple[str, ...] = Field(
        (),
        description="For each training corpus, a file of word alignments, a Pharaoh line (0-0 1-2) for each pair, or an empty name for a "
        "corpus that has none; for training.alignment_weight.",
    )
    tags: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")], ...] = Field(
        (), description="For each training corpus, the language tag before its sources: de puts >>de<<; not given, there are no tags."
    )
    valid_tags: tuple[str, ...] = Field(
        (), description="For each validation corpus, its language tag; not given, those of tags, where there are as many corpora."
    )
    tokenizer: Literal["bpe", "whitespace", "characters", "foreign"] = Field(
        "bpe",
        description="Byte-pair encoding learnt from the training text; text that is already segmented and splits at spaces (whitespace); "
        "an entry for each Unicode code point of the training text (characters); or the vocabulary of an imported model (foreign), which "
        "only training that goes on from one has.",
    )
    target_tokenizer: Literal["", "bpe", "whitespace"] = Field(
        "", description="The target's, where it is not the source's: whitespace for trees; needs joint_vocabulary=false."
    )
    vocabulary_size: int = Field(
        37_000,
        ge=0,
        le=10_000_000,
        description="Most vocabulary entries, special tokens included (5.1: about 37,000); 0 keeps every word of whitespace and every "
        "code point of characters.",
    )
    joint_vocabulary: bool = Field(True, description="One vocabulary for source and target (5.1), or one each.")
    normalization: Literal["none", "nfc", "nfkc"] = Field(
        "none", description="Unicode normal form applied to text; none keeps every code point."
    )
    joiner: str = Field(
        "", description="For whitespace: the mark at the end of a piece that joins it to the next, such as @@; removed from output."
    )
    bpe_dropout: float = Field(
        0.0,
        ge=0,
        le=1,
        description="For bpe: the probability with which a merge is left out, so that each epoch spells the training text in other pieces.",
    )
    max_length: int = Field(
        256, gt=1, description="Pairs with a side of more tokens than this, end token included, are dropped and counted."
    )
    documents: Literal["file", "blank-line", "line"] = Field(
        "file",
        description="For a model of one sequence: what the text is cut into, with an end token behind each: whole files, what stands "
        "between blank lines, or lines.",
    )
    mask_probability: float = Field(
        0.15,
        gt=0,
        lt=1,
        description="For encoder-only: the share of a sequence's tokens to predict; of those 80 % are masked, 10 % replaced at random and "
        "10 % kept, as in BERT.",
    )
    mask_words: bool = Field(False, description="For encoder-only: whether whole words are chosen to be predicted, not single pieces.")

    @field_validator("train", "valid", "weights", "alignments", "tags", "valid_tags", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        one = isinstance(value, str | int | float) and not isinstance(value, bool)
        return (value,) if one else tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        if self.source and self.source == self.target:
            problems.append(f"source and target are both {self.source!r}; give two different language codes")
        if self.joiner and self.tokenizer != "whitespace":
            problems.append("joiner is for tokenizer='whitespace' only; leave it empty for bpe")
        if self.target_tokenizer not in ("", self.tokenizer) and self.joint_vocabulary:
            problems.append(f"target_tokenizer={self.target_tokenizer!r} needs a vocabulary of its own; set joint_vocabulary=false")
        if self.bpe_dropout and "whitespace" in (self.tokenizer, self.target_tokenizer):
            problems.append(f"bpe_dropout={self.bpe_dropout} is for tokenizer='bpe' only; leave it at 0")
        if self.weights and len(self.weights) != len(self.train):
            problems.append(f"weights has {len(self.weights)} numbers for {len(self.train)} training corpora; give one for each --train")
        problems += self._wrong_alignments() + self._wrong_tags()
        problems += [_NO_RECORD.format(name) for name in (*self.train, *self.valid, *self.alignments) if not _is_text(name)]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _wrong_alignments(self) -> list[str]:
        if not self.alignments:
            return []
        problems = []
        if len(self.alignments) != len(self.train):
            problems.append(
                f"alignments has {len(self.alignments)} files for {len(self.train)} training corpora; give one for each --train, an empty "
                "name for a corpus that has none"
            )
        if not any(self.alignments):
            problems.append("alignments names no file; give one, or leave it out")
        if self.bpe_dropout:
            problems.append(
                f"alignments need pieces that stay the same, and with bpe_dropout={self.bpe_dropout} every epoch has others; leave one out"
            )
        return problems

    def _wrong_tags(self) -> list[str]:
        problems, validation = [], self.validation_tags
        if self.tags and len(self.tags) != len(self.train):
            problems.append(f"tags has {len(self.tags)} entries for {len(self.train)} training corpora; give one for each --train")
        if (self.tags or self.valid_tags) and len(validation) != len(self.valid):
            problems.append(f"valid_tags has {len(validation)} entries for {len(self.valid)} validation corpora; give one for each --valid")
        if unknown := [tag for tag in self.valid_tags if tag not in self.tags]:
            problems.append(f"valid_tags has {', '.join(unknown)}, which no training corpus has; choose among tags")
        return problems

    @property
    def validation_tags(self) -> tuple[str, ...]:
        """valid_tags as used: the training corpora's where none are given and there are as many validation corpora."""
        return self.valid_tags or (self.tags if len(self.valid) == len(self.train) else ())


class TrainingConfig(Settings):
    """Sections 5.1 to 5.4: batches, optimiser, schedule, regularisation, and when to look and stop."""

    batch_tokens: Annotated[int | Literal["auto"], PlainValidator(_budget)] = Field(
        25_000,
        description="Most source tokens and most target tokens of an update's batch, padding counted (5.1); auto is what fits, and becomes "
        "that number.",
    )
    accumulate: int = Field(1, gt=0, description="Batches whose gradients make one update; the loss divides by all their target tokens.")
    max_steps: int = Field(100_000, gt=0, description="Updates after which training ends (5.2).")
    max_minutes: float | None = Field(
        None, gt=0, description="Minutes after which training ends, evaluations included but the last; no limit when not given."
    )
    schedule: Literal["paper", "inverse-sqrt", "cosine", "linear", "constant"] = Field(
        "paper", description="Learning rate over steps: equation (3), or a warm-up to learning_rate followed by the named decay."
    )
    warmup_steps: int = Field(4000, gt=0, description="Steps over which the learning rate rises (5.3).")
    factor: float = Field(1.0, gt=0, description="Multiplies equation (3), so for schedule='paper' only; 1 in the paper.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak rate of all schedules but 'paper', which has none.")
    minimum_rate: float = Field(0.0, ge=0, description="For cosine and linear: the rate that they fall to at max_steps.")
    optimizer: Literal["adam", "adamw", "muon"] = Field(
        "adam",
        description="The paper's Adam (5.3), AdamW, or Muon for the matrices between embeddings and output with AdamW for the rest.",
    )
    weight_decay: float = Field(
        0.0, ge=0, description="Decoupled decay of matrices under adamw and muon: each step takes rate times this times the weight."
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="Adam's β₁ (5.3).")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="Adam's β₂ (5.3).")
    adam_epsilon: float = Field(1e-9, gt=0, description="Adam's ε (5.3).")
    clip_norm: float = Field(0.0, ge=0, description="Largest norm of an update's gradient; 0 clips nothing, as in the paper.")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="ε_ls: the part of the target distribution spread over all classes (5.4).")
    rdrop: float = Field(
        0.0,
        ge=0,
        description="R-Drop's α: two passes with other dropout, and their divergence in the loss; 0 is one pass, as in the paper.",
    )
    alignment_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of the alignment loss of one head (data.alignments) beside the translation's; 0.05 in the article, 0 is none.",
    )
    ema: float = Field(
        0.0, ge=0, lt=1, description="Decay of a moving average of the weights, which is what is evaluated and saved; 0 keeps none."
    )
    seed: int = Field(1, ge=0, lt=2**63, description="Seed of initialisation, dropout and the order of the data.")
    start_from: str = Field(
        "", description="A model whose sizes, vocabulary and weights training goes on from (--from); empty begins with fresh weights."
    )
    evaluate_every: int = Field(1000, gt=0, description="Steps between evaluations, each of which writes a checkpoint.")
    keep: int = Field(5, gt=0, description="Newest checkpoints kept, beside the best.")
    patience: int = Field(0, ge=0, description="Evaluations without a better best_by after which training ends; 0 never.")
    best_by: Literal["bleu", "loss"] = Field("bleu", description="What makes a checkpoint the best: higher BLEU or lower validation loss.")
    bleu_tokenize: str = Field("13a", description="sacreBLEU's word splitter for validation BLEU: 13a, none, intl, zh, char and so on.")
    bleu_lowercase: bool = Field(False, description="Ignore case in the BLEU and chrF of evaluations.")
    validation_stride: int = Field(
        0,
        ge=0,
        description="For decoder-only: tokens by which the context moves over the validation text, each predicted once; 0 is all of the "
        "context, and less lets each token see more before it.",
    )
    sampled_batches: int = Field(
        20,
        ge=0,
        description="For a model of one sequence: batches at random places of the validation text whose mean loss stands beside the exact "
        "one; 0 none.",
    )
    log_every: int = Field(50, gt=0, description="Steps between progress records.")
    tensorboard: bool = Field(False, description="Whether TensorBoard's files are written too, into the run folder.")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:N or mps.")
    shard: bool = Field(
        False, description="Whether the processes that torchrun started share the model out, for one that does not fit on one device."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="Type of the matrix products: auto is bf16 on a GPU that has it and on a CPU where it is measured to be faster, and "
        "fp16, whose loss is scaled, on a GPU that has only that.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.weight_decay and self.optimizer == "adam":
            raise ValueError(f"weight_decay={self.weight_decay} is not for optimizer='adam'; set optimizer='adamw' or 'muon'")
        if self.minimum_rate and self.schedule not in ("cosine", "linear"):
            raise ValueError(f"minimum_rate={self.minimum_rate:g} is for schedule='cosine' or 'linear' only; set minimum_rate=0")
        if self.minimum_rate > self.learning_rate:
            raise ValueError(f"minimum_rate={self.minimum_rate:g} is above learning_rate={self.learning_rate:g}; lower it")
        if self.shard and (self.ema or self.optimizer == "muon"):
            named = f"ema={self.ema}" if self.ema else "optimizer='muon', which needs whole matrices"
            raise ValueError(f"shard=true does not go with {named}; leave out one of them")
        if not _is_text(self.start_from):
            raise ValueError(_NO_RECORD.format(self.start_from))
        return self

    @property
    def batch_budget(self) -> int:
        """batch_tokens as used, when ``auto`` has become a number (`training/budget.py`); ValueError before."""
        if self.batch_tokens == "auto":
            raise ValueError("training.batch_tokens=auto has no number yet")
        return self.batch_tokens


class DecodingConfig(Settings):
    """Section 6.1: beam search."""

    beam: int = Field(4, gt=0, description="Hypotheses kept at each step (6.1); 1 is greedy.")
    alpha: float = Field(
        0.6,
        ge=-10,
        le=10,
        description="Length penalty: scores divide by ((5 + n) / 6)^alpha, so a larger alpha favours longer output (6.1).",
    )
    extra_length: int = Field(50, ge=0, description="Output may have this many tokens more than the source (6.1).")


class Config(Settings):
    """All settings of a run."""

    preset: str = Field("base", description="The preset the settings started from.")
    model: ModelConfig = Field(ModelConfig.model_construct(), description="Section 3.")
    data: DataConfig = Field(DataConfig.model_construct(), description="Section 5.1.")
    training: TrainingConfig = Field(TrainingConfig.model_construct(), description="Sections 5.1 to 5.4.")
    decoding: DecodingConfig = Field(DecodingConfig.model_construct(), description="Section 6.1.")

    def with_values(self, **groups: Mapping[str, Any]) -> "Config":
        """A checked copy with the given fields of the named groups replaced: ``config.with_values(model={"d_model": 64})``."""
        return merge(self.model_dump(), groups, place="settings")


def merge(base: Mapping[str, Any], changes: Mapping[str, Any], *, place: str) -> Config:
    """Config of ``base`` with the nested ``changes`` over it; UsageError that names ``place`` and each wrong field."""
    return check(layer(base, changes, place=place), place=place)


def layer(base: Mapping[str, Any], changes: Mapping[str, Any], *, place: str) -> dict[str, Any]:
    """``base`` with the nested ``changes`` over it, whose fields are checked one by one; what must fit together is for `check`.

    Raises UsageError that names ``place`` and each unknown or impossible field.
    """
    merged: dict[str, Any] = {key: dict(value) if isinstance(value, Mapping) else value for key, value in base.items()}
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), dict):
            merged[key].update(value)
        else:
            merged[key] = value
    try:
        Config.model_validate(merged)
    except ValidationError as error:
        if any(problem["type"] != "value_error" for problem in error.errors()):
            raise UsageError(f"{place}: {'; '.join(map(_sentence, error.errors()))}") from None
    return merged


def check(settings: Mapping[str, Any], *, place: str) -> Config:
    """The Config of complete settings; UsageError that names ``place`` and everything that is wrong."""
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        raise UsageError(f"{place}: {'; '.join(map(_sentence, error.errors()))}") from None


def list_for_shell(group: str, key: str, texts: Sequence[str] = ()) -> str:
    """How to write a setting that is a list, as a shell takes it, of these texts unless it is of numbers; empty for another."""
    settings = Config.model_fields.get(group)
    field = getattr(settings.annotation, "model_fields", {}).get(key) if settings else None
    if field is None or get_origin(field.annotation) is not tuple:
        return ""
    item = get_args(field.annotation)[0]
    items: Sequence[object] = [1, 3] if float in (item, *get_args(item)) else texts or ("first", "second")
    return shlex.quote(f"{group}.{key}={json.dumps(items, ensure_ascii=False, separators=(',', ':'))}")


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _sentence(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *groups, key = (str(part) for part in problem["loc"])
        fields: Mapping[str, Any] = Config.model_fields
        for group in groups:
            fields = fields[group].annotation.model_fields
        nearest = difflib.get_close_matches(key, fields, n=1, cutoff=0.0)[0]
        return f"unknown setting {place}; the nearest is {'.'.join([*groups, nearest])}"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = problem["input"] if isinstance(problem["input"], str) else ""
    group, key = (*map(str, problem["loc"]), "", "")[:2]
    if right := list_for_shell(group, key, [text for part in given.split(",") if (text := part.strip())]):
        message = message.replace("a valid tuple", "a list")
        message += f"; write {right}" if problem["type"] == "tuple_type" or "," in given else ""
    return message if problem["type"] == "value_error" else f"{place}={problem['input']!r}: {message}"
