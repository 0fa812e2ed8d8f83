"""Tokenizers of Hugging Face folders as ours: byte-level BPE, WordPiece, SentencePiece; every id as it is there."""

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError
from dragoman.interop.document import Document
from dragoman.interop.sentencepiece import BYTE_PAIRS, SentencePiece, byte_pairs, unigram

_TAG_MARKS = (">>", "<<")


def read_tokenizers(folder: Path, document: Document) -> tuple[Tokenizer, Tokenizer]:
    """The source's and the target's tokenizer of a folder, one object when they are one; DragomanError for what cannot be used."""
    try:
        source, target = _read_both(folder, document)
    except DragomanError:
        raise
    except Exception as error:  # tokenizers raises bare Exception
        raise DragomanError(f"{folder}: the tokenizer's files are damaged ({error}); use an undamaged copy") from None
    for tokenizer in (source, target):
        for name, token in (("pad", tokenizer.pad), ("bos", tokenizer.bos), ("eos", tokenizer.eos), ("unk", tokenizer.unk)):
            if type(token) is not int or not 0 <= token < len(tokenizer):
                raise DragomanError(
                    f"{folder}: the {name} token has the id {token!r}, and the tokenizer's {len(tokenizer)} entries are from 0; correct "
                    "the ids in config.json"
                )
    return source, target


def _read_both(folder: Path, document: Document) -> tuple[Tokenizer, Tokenizer]:
    kind = document.get("model_type")
    if kind in ("marian", "pegasus") and (folder / "source.spm").is_file():
        return _read_marian(folder, document)
    special = _special_tokens(folder)
    if kind == "bert":  # these names are what BERT's tokenizer has where no file says others
        special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk", "mask")} | special
    tokenizer = _read_one(folder, document, special)
    return tokenizer, tokenizer


def _read_one(folder: Path, document: Document, special: Mapping[str, Any]) -> Tokenizer:
    backend = _read_backend(folder, document, special)
    _add_missing(folder, backend, special)
    _require_no_gaps(folder, backend)

    def find(*names: str) -> int | None:
        """The id of the first special token of these names that there is, or that config.json gives."""
        for name in names:
            text = special.get(name)
            token = backend.token_to_id(text) if isinstance(text, str) else document.get(f"{name}_id")
            token = token[0] if isinstance(token, list) and token else token
            if isinstance(token, int):
                return token
        return None

    encoder = document.get("model_type") == "bert"
    eos = find("sep_token", "eos_token") if encoder else find("eos_token", "sep_token")
    bos = find("cls_token", "bos_token") if encoder else find("bos_token", "cls_token")
    if document.get("is_encoder_decoder") or document.get("model_type") in ("marian", "pegasus"):
        start = document.get("decoder_start_token_id")
        bos = start if isinstance(start, int) else find("pad_token")
    if eos is None:
        raise DragomanError(f"{folder}: neither the tokenizer's files nor config.json names an end token; add eos_token_id to config.json")
    bos = eos if bos is None else bos
    pad = find("pad_token")
    unk, mask = find("unk_token"), find("mask_token")
    return Tokenizer(
        kind="foreign",
        joiner="",
        pad=eos if pad is None else pad,
        bos=bos,
        eos=eos,
        unk=eos if unk is None else unk,
        backend=backend,
        mask=mask,
        opening=_opening(backend, special, bos) if _continues(document) else (),
    )


def _continues(document: Document) -> bool:
    return document.get("model_type") in ("gpt2", "llama", "mistral")


def _opening(backend: tokenizers.Tokenizer, special: Mapping[str, Any], bos: int) -> tuple[int, ...]:
    """The ids that the tokenizer puts before a text."""
    plain, whole = (backend.encode("a", add_special_tokens=added).ids for added in (False, True))
    before = (
        whole[: len(whole) - len(plain)] if whole[len(whole) - len(plain) :] == plain else [token for token in whole[:1] if token == bos]
    )
    return tuple(before) if special.get("add_bos_token") is None else ((bos,) if special["add_bos_token"] else ())


def _special_tokens(folder: Path) -> dict[str, Any]:
    """Names and texts of special tokens, and the switches of tokenizer_config.json; empty when there is neither file."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            values = Document.read(folder / name).values
            found |= {
                key: value["content"] if isinstance(value, dict) and "content" in value else value
                for key, value in values.items()
                if value is not None
            }
    return found


def _read_backend(folder: Path, document: Document, special: Mapping[str, Any]) -> tokenizers.Tokenizer:
    whole, kind = folder / "tokenizer.json", document.get("model_type")
    if whole.is_file():
        return tokenizers.Tokenizer.from_file(str(whole))
    if kind == "gpt2" and (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _byte_level(folder, prefixed=bool(special.get("add_prefix_space", False)))
    if kind == "bert" and (folder / "vocab.txt").is_file():
        return _word_pieces(folder / "vocab.txt", special)
    if kind in ("llama", "mistral") and (path := folder / "tokenizer.model").is_file():
        model = SentencePiece.read(path)
        if model.kind != BYTE_PAIRS:
            raise DragomanError(f"{path}: not a SentencePiece model of byte pairs, which {kind} has; use the model's own")
        return byte_pairs(model.pieces, model.normalizer())
    raise DragomanError(
        f"{folder}: no tokenizer: neither tokenizer.json, nor vocab.json, merges.txt (GPT-2), vocab.txt (BERT), tokenizer.model (Llama) "
        "or source.spm, target.spm, vocab.json (Marian); copy the whole folder of the model"
    )


def _byte_level(folder: Path, *, prefixed: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefixed)
    backend.decoder = decoders.ByteLevel()
    return backend


def _word_pieces(path: Path, special: Mapping[str, Any]) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece.from_file(str(path), unk_token=special["unk_token"]))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=special.get("tokenize_chinese_chars", True),
        strip_accents=special.get("strip_accents"),
        lowercase=special.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    names = [special[f"{name}_token"] for name in ("unk", "pad", "cls", "sep", "mask")]
    backend.add_special_tokens([name for name in names if backend.token_to_id(name) is not None])
    return backend


def _add_missing(folder: Path, backend: tokenizers.Tokenizer, special: Mapping[str, Any]) -> None:
    """Adds the tokens that the folder's other files name and tokenizer.json has not; DragomanError for an id that is not the next."""
    more: dict[int, tuple[str, bool]] = {}
    if (path := folder / "added_tokens.json").is_file():
        added = Document.read(path).values
        if not all(type(token) is int for token in added.values()):
            raise DragomanError(f"{path}: not tokens with their ids; use an undamaged copy")
        more |= {token: (text, False) for text, token in added.items()}
    decoder = special.get("added_tokens_decoder")
    for token, entry in (decoder if isinstance(decoder, dict) else {}).items():
        if not token.isdecimal() or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise DragomanError(
                f"{folder}/tokenizer_config.json: added_tokens_decoder has no token of the id {token}; use an undamaged copy"
            )
        more[int(token)] = entry["content"], bool(entry.get("special"))
    for token, (text, is_special) in sorted(more.items()):
        if backend.token_to_id(text) is None:
            add = backend.add_special_tokens if is_special else backend.add_tokens
            add([AddedToken(text, special=is_special, normalized=False)])
        if backend.token_to_id(text) != token:
            raise DragomanError(
                f"{folder}: the token {text!r} has the id {token} in one of the tokenizer's files and {backend.token_to_id(text)} by the "
                "others, which would leave a gap or clash; use an undamaged copy"
            )


def _require_no_gaps(folder: Path, backend: tokenizers.Tokenizer) -> None:
    vocabulary = backend.get_vocab()
    ids = set(vocabulary.values())
    if not ids or len(ids) < len(vocabulary):
        what = "two of the tokenizer's entries have one id" if ids else "the tokenizer has no entries"
        raise DragomanError(f"{folder}: {what}; use an undamaged copy")
    missing = list(islice((token for token in range(max(ids)) if token not in ids), 6))  # the highest may be any number
    if missing:
        shown = ", ".join(map(str, missing[:5]))
        raise DragomanError(
            f"{folder}: the tokenizer's ids have gaps: none of its {len(ids)} entries has the id {shown}{' …' if missing[5:] else ''}; "
            "give each id up to the highest an entry"
        )


def _read_marian(folder: Path, document: Document) -> tuple[Tokenizer, Tokenizer]:
    special = _special_tokens(folder)
    separate = bool(special.get("separate_vocabs"))
    vocabularies = [_read_ids(folder / name) for name in ("vocab.json", "target_vocab.json" if separate else "vocab.json")]
    found = []
    for side, ids in zip(("source", "target"), vocabularies, strict=True):
        path = folder / f"{side}.spm"
        unk = ids.get(str(special.get("unk_token", "<unk>")))
        if unk is None:
            raise DragomanError(
                f"{folder}: the vocabulary has no {special.get('unk_token', '<unk>')!r} for unknown words; use an undamaged copy"
            )
        eos = document.token("eos_token_id", 0)
        pad = document.whole("pad_token_id", ids.get("<pad>", len(ids) - 1))
        tags = {
            text[2:-2]: token
            for text, token in ids.items()
            if side == "source" and text.startswith(_TAG_MARKS[0]) and text.endswith(_TAG_MARKS[1]) and _plain_tag(text[2:-2])
        }
        backend = unigram(SentencePiece.read(path), ids, unk=unk, path=path)
        found.append(
            Tokenizer(
                kind="foreign", joiner="", pad=pad, bos=document.whole("decoder_start_token_id", pad), eos=eos, unk=unk, backend=backend,
                tags=tags,
            )
        )  # fmt: skip
    return found[0], found[1]


def _plain_tag(name: str) -> bool:
    return bool(name) and all(character.isascii() and (character.isalnum() or character in "_-") for character in name)


def _read_ids(path: Path) -> dict[str, int]:
    """A vocab.json: entries with their ids, which have no gaps."""
    ids = Document.read(path).values
    if not ids or sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str):
        raise DragomanError(f"{path}: the ids of its {len(ids)} entries are not 0 to {len(ids) - 1}, each once; use an undamaged copy")
    return dict(ids)


def write_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer, *, architecture: str, languages: tuple[str, str]) -> None:
    """Writes the tokenizer's files of a Hugging Face folder; DragomanError for two vocabularies that its tokenizers cannot express."""
    pieces = [from_backend(each) for each in (source, target)]
    if source is not target and all(pieces):
        _write_marian(folder, source, target, languages)
        return
    if source is not target:
        raise DragomanError(
            "the model has a vocabulary for each side, and Hugging Face's tokenizers of this kind hold one for both; export it otherwise, "
            "or train with data.joint_vocabulary=true"
        )
    _write_fast(folder, source, architecture=architecture)


def from_backend(tokenizer: Tokenizer) -> SentencePiece | None:
    """The SentencePiece model of a foreign tokenizer that was made of one, or None."""
    from dragoman.interop.sentencepiece import from_unigram

    return from_unigram(tokenizer.backend) if tokenizer.kind == "foreign" else None


def _write_marian(folder: Path, source: Tokenizer, target: Tokenizer, languages: tuple[str, str]) -> None:
    vocabularies = [
        {entry.removesuffix(" "): token for entry, token in sorted(each.backend.get_vocab().items(), key=lambda item: item[1])}
        for each in (source, target)
    ]
    separate = vocabularies[0] != vocabularies[1]
    for name, vocabulary in zip(("vocab.json", "target_vocab.json"), vocabularies if separate else vocabularies[:1], strict=False):
        (folder / name).write_text(json.dumps(vocabulary, ensure_ascii=False, indent=1), encoding="utf-8")
    for side, tokenizer in (("source", source), ("target", target)):
        model = from_backend(tokenizer)
        assert model is not None
        (folder / f"{side}.spm").write_bytes(model.to_bytes())
    values = {
        "tokenizer_class": "MarianTokenizer",
        **{f"{name}_token": source.token(token) for name, token in (("eos", source.eos), ("unk", source.unk), ("pad", source.pad))},
        "source_lang": languages[0],
        "target_lang": languages[1],
        "separate_vocabs": separate,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8")


def _write_fast(folder: Path, tokenizer: Tokenizer, *, architecture: str) -> None:
    """tokenizer.json for PreTrainedTokenizerFast, which gives the ids with what the model expects before and after a text."""
    saved: dict[str, Any] = json.loads(tokenizer.backend.to_str())
    entry = {name: tokenizer.backend.id_to_token(token) for name, token in _named(tokenizer).items()}
    added = {each["id"]: each for each in saved["added_tokens"]}
    for token in {*_named(tokenizer).values(), *tokenizer.tags.values()}:
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        content = tokenizer.backend.id_to_token(token)
        added[token] = {"id": token, "content": content, **flags, "special": token not in tokenizer.tags.values()}
    saved["added_tokens"] = [added[token] for token in sorted(added)]
    before = {"decoder-only": [*tokenizer.opening], "encoder-only": [tokenizer.bos]}.get(architecture, [*tokenizer.opening])
    saved["post_processor"] = _template(tokenizer, before, [] if architecture == "decoder-only" else [tokenizer.eos])
    if tokenizer.joiner:
        saved["decoder"] = _joining_decoder(tokenizer.joiner)
    (folder / "tokenizer.json").write_text(json.dumps(saved, ensure_ascii=False, indent=1), encoding="utf-8")
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": text for name, text in entry.items()},
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left" if architecture == "decoder-only" else "right",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8")


def _named(tokenizer: Tokenizer) -> dict[str, int]:
    names = {"pad": tokenizer.pad, "bos": tokenizer.bos, "eos": tokenizer.eos, "unk": tokenizer.unk}
    return names | ({} if tokenizer.mask is None else {"mask": tokenizer.mask})


def _template(tokenizer: Tokenizer, before: list[int], after: list[int]) -> dict[str, Any] | None:
    if not before and not after:
        return None
    texts = {token: tokenizer.backend.id_to_token(token) for token in (*before, *after)}

    def marks(tokens: list[int]) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": texts[token], "type_id": 0}} for token in tokens]

    def sequence(name: str, kind: int) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": name, "type_id": kind}}]

    end = [{"SpecialToken": {"id": texts[token], "type_id": 1}} for token in after]
    return {
        "type": "TemplateProcessing",
        "single": marks(before) + sequence("A", 0) + marks(after),
        "pair": marks(before) + sequence("A", 0) + marks(after) + sequence("B", 1) + end,
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]} for token, text in texts.items()},
    }


def _joining_decoder(joiner: str) -> dict[str, Any]:
    """Pieces with spaces between them, but for those with the joiner at their end."""
    spaced = {"type": "WordPiece", "prefix": "\0", "cleanup": False}
    end = {"type": "Replace", "pattern": {"Regex": rf"{_escaped(joiner)}( |\z)"}, "content": ""}
    return {"type": "Sequence", "decoders": [spaced, {"type": "Fuse"}, end]}


def _escaped(text: str) -> str:
    return "".join(character if character.isalnum() else f"\\{character}" for character in text)
