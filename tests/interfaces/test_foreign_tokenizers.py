"""Other programs' vocabularies as tokenizers here: pieces, places in the text, special tokens in text, and their files."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError, UsageError
from dragoman.interop.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, Piece, SentencePiece, byte_pairs, from_unigram, unigram


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = {entry: token for token, entry in enumerate(["<|endoftext|>", *alphabet, "Ġh", "or", "se", "Ġhor", "Ġhorse"])}
    merges = [("Ġ", "h"), ("o", "r"), ("s", "e"), ("Ġh", "or"), ("Ġhor", "se")]
    backend = Backend(models.BPE(entries, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    return Tokenizer(kind="foreign", joiner="", pad=0, bos=0, eos=0, unk=0, backend=backend)


def word_pieces() -> Tokenizer:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "mask", "a", "horse", "rid", "##es", ".", "cafe"]
    backend = Backend(models.WordPiece({entry: token for token, entry in enumerate(entries)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    backend.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    backend.enable_truncation(3)
    backend.enable_padding(length=12)
    return Tokenizer(kind="foreign", joiner="", pad=0, bos=2, eos=3, unk=1, backend=backend, mask=4)


SPM = SentencePiece(
    [
        *(Piece("<unk>", 0.0, UNKNOWN), Piece("<s>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL)),
        *(Piece(text, -float(rank), NORMAL) for rank, text in enumerate(["▁", "▁a", "▁ho", "rse", "s", "a", "h", "o", "r", "e", "é"], 1)),
    ],
    1,
    b"",
)
ENTRIES = ["</s>", "<unk>", ">>de<<", "▁", "▁a", "▁ho", "rse", "s", "a", "h", "o", "r", "e", "é", "z", "▁only", "ß", "<pad>"]


def sentence_pieces(tmp_path: Path) -> Tokenizer:
    backend = unigram(SPM, {entry: token for token, entry in enumerate(ENTRIES)}, unk=1, path=tmp_path)
    return Tokenizer(kind="foreign", joiner="", pad=17, bos=17, eos=0, unk=1, backend=backend, tags={"de": 2})


def llama_pieces() -> Tokenizer:
    bytes_ = [Piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    texts = ["▁h", "or", "se", "▁hor", "▁horse", "▁", "h", "o", "r", "s", "e"]
    special = [Piece("<unk>", 0.0, UNKNOWN), Piece("<s>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL)]
    pieces = [*special, *bytes_, *(Piece(text, -float(rank), NORMAL) for rank, text in enumerate(texts))]
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return Tokenizer(kind="foreign", joiner="", pad=2, bos=1, eos=2, unk=0, backend=byte_pairs(pieces, normalizer), opening=(1,))


def test_byte_level_pieces_are_lossless_and_the_first_word_has_no_space() -> None:
    tokenizer = byte_level()
    for text in (" horse", "horse", "  é 🐟\n", "東 horse", "<|endoftext|>"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.piece, ids)) == text.encode()
        assert 0 not in ids
    assert [tokenizer.token(token) for token in tokenizer.encode("a horseé")] == ["a", " horse", "\\xc3", "\\xa9"]
    assert tokenizer.token(0) == "<|endoftext|>"
    assert tokenizer.decode([0, *tokenizer.encode("a"), 0]) == "a"


def test_word_pieces_have_their_spaces_and_marks() -> None:
    tokenizer = word_pieces()
    ids = tokenizer.encode("A horse rides. Café")
    assert [tokenizer.token(token) for token in ids] == ["a", "horse", "rid", "##es", ".", "cafe"]  # neither cut nor padded, and no [CLS]
    assert tokenizer.decode(ids) == "a horse rides. cafe"
    assert [tokenizer.piece(token) for token in ids] == [b" a", b" horse", b" rid", b"es", b" .", b" cafe"]
    assert tokenizer.decoded_spans(ids) == [(0, 1), (2, 7), (8, 11), (11, 13), (13, 14), (15, 19)]
    assert tokenizer.encoded_spans("A horse rides.") == [(0, 1), (2, 7), (8, 11), (11, 13), (13, 14)]
    assert [tokenizer.token(token) for token in tokenizer.encode("[MASK]")] == ["[", "mask", "]"]
    assert tokenizer.textless == {0, 2, 3, 4}


def test_unigram_pieces_of_the_other_side_are_hidden_from_text_but_spelled(tmp_path: Path) -> None:
    tokenizer = sentence_pieces(tmp_path)
    assert [tokenizer.token(token) for token in tokenizer.encode("  a  horse ")] == [" a", " ho", "rse"]
    assert tokenizer.encode("a only") == [4, 3, 10, 1]  # ▁only is the other side's
    assert tokenizer.encode("z") == [3, 14]  # an unknown piece that the vocabulary has nevertheless, as MarianTokenizer finds it
    assert tokenizer.encode("</s>") == [3, 1, 7, 1]
    assert tokenizer.decode([4, 15, 16, 0, 17]) == "a onlyß"
    assert tokenizer.decode([1, 5]) == "<unk> ho"
    assert tokenizer.piece(5) == b" ho"
    assert tokenizer.decoded_spans([4, 5, 6]) == [(0, 1), (1, 4), (4, 7)]
    assert tokenizer.split_tag(">>de<< a", place="line 1") == ([2], "a")
    with pytest.raises(DragomanError, match=r"line 1: the line begins with no language tag"):
        tokenizer.split_tag("a", place="line 1")


def test_bytes_that_stand_in_for_unknown_characters() -> None:
    tokenizer = llama_pieces()
    ids = tokenizer.encode("horse é<s>")
    assert tokenizer.decode([1, *ids]) == "horse é<s>"
    assert [tokenizer.token(token) for token in ids[:4]] == [" horse", " ", "\\xc3", "\\xa9"]
    spans = tokenizer.decoded_spans(ids[:4])
    assert spans == [(0, 5), (5, 6), (6, 7), (6, 7)]
    assert 1 not in ids
    assert tokenizer.as_source(ids) == [1, *ids, 2]


@pytest.mark.parametrize("make", [byte_level, word_pieces, llama_pieces, sentence_pieces])
def test_a_foreign_tokenizer_is_saved_and_loaded(make: object, tmp_path: Path) -> None:
    tokenizer = make(tmp_path) if make is sentence_pieces else make()  # type: ignore[operator]
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.fingerprint == tokenizer.fingerprint
    for text in ("A horse rides. [MASK] <s>", "", "  é 🐟 only", "<|endoftext|></s>"):
        assert loaded.encode(text) == tokenizer.encode(text)
    assert (loaded.opening, loaded.textless, loaded.kind) == (tokenizer.opening, tokenizer.textless, "foreign")
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    (tmp_path / "broken.json").write_text(json.dumps(document | {"opening": [len(tokenizer)]}))
    with pytest.raises(DragomanError, match="special ids"):
        Tokenizer.load(tmp_path / "broken.json")


def test_tags_are_added_behind_all_other_entries(tmp_path: Path) -> None:
    for tokenizer in (sentence_pieces(tmp_path), byte_level(), word_pieces()):
        tagged = tokenizer.with_tags(["fr"])
        assert tagged.tags["fr"] == len(tokenizer)
        assert tagged.encode("a horse >>fr<<") == tokenizer.encode("a horse >>fr<<")
        assert tagged.token(len(tokenizer)) == ">>fr<<"


def test_no_foreign_tokenizer_is_learnt() -> None:
    with pytest.raises(UsageError, match=r"data.tokenizer=foreign is the vocabulary of an imported model"):
        Tokenizer.train(["a"], kind="foreign", vocabulary_size=300)


def test_a_sentencepiece_file_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "source.spm"
    path.write_bytes(SPM.to_bytes())
    assert SentencePiece.read(path) == SPM
    model = from_unigram(sentence_pieces(tmp_path).backend)
    assert model is not None
    assert sorted(model.pieces) == sorted(SPM.pieces)
    assert from_unigram(byte_level().backend) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": 2}, "a SentencePiece model of BPE is not supported"),
        ({"byte_fallback": True}, "a SentencePiece model of byte fallback is not supported"),
        ({"pieces": [*SPM.pieces, Piece("<x>", 0.0, 4)]}, "user-defined pieces is not supported"),
    ],
)
def test_other_kinds_of_sentencepiece_models_are_named(change: dict[str, object], said: str, tmp_path: Path) -> None:
    model = SentencePiece(**{name: getattr(SPM, name) for name in SentencePiece.__dataclass_fields__} | change)  # type: ignore[arg-type]
    with pytest.raises(DragomanError, match=said):
        unigram(model, {piece.text: token for token, piece in enumerate(SPM.pieces)}, unk=0, path=tmp_path / "source.spm")


@pytest.mark.parametrize("content", [b"", b"\x0a\x50abc", b"not one at all", b"\x0b\x00"])
def test_damaged_sentencepiece_files_are_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "source.spm").write_bytes(content)
    with pytest.raises(DragomanError, match=r"source.spm: not a SentencePiece model, or damaged"):
        SentencePiece.read(tmp_path / "source.spm")


def test_the_same_pieces_as_the_sentencepiece_package(tmp_path: Path) -> None:
    package = pytest.importorskip("sentencepiece", reason="no sentencepiece: pip install 'dragoman[huggingface]'")
    from foreign_models import LINES, ODD_TEXTS
    from foreign_models import sentence_pieces as trained

    (tmp_path / "source.spm").write_bytes(trained(LINES, 60))
    model = SentencePiece.read(tmp_path / "source.spm")
    ids = {piece.text: token for token, piece in enumerate(model.pieces)}
    tokenizer = Tokenizer(
        kind="foreign", joiner="", pad=1, bos=1, eos=2, unk=0, backend=unigram(model, ids, unk=0, path=tmp_path / "source.spm")
    )
    rewritten = from_unigram(tokenizer.backend)
    assert rewritten is not None
    for processor in (
        package.SentencePieceProcessor(model_file=str(tmp_path / "source.spm")),
        package.SentencePieceProcessor(model_proto=rewritten.to_bytes()),
    ):
        for text in (*ODD_TEXTS, *LINES):
            expected = [ids.get(piece, 0) for piece in processor.encode(text, out_type=str)]
            assert tokenizer.encode(text) == expected, text
