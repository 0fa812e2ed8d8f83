"""Vocabularies learnt from text: byte pairs, the words of segmented text, or characters (Section 5.1).

Each is a backend of `Tokenizer`, whose first entries are the ``special`` tokens: padding, start, end and unknown.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

logger = logging.getLogger("dragoman")

# Words with their marks, single digits, the isolated <, other signs; each with the space before it. Then the remaining spaces.
# None is longer than 64 characters: learning takes the square of that, and no word needs more.
PIECES = r" ?[\p{L}\p{M}]{1,64}| ?\p{N}| ?<| ?[^\s\p{L}\p{M}\p{N}<]{1,64}|\s{1,64}(?!\S)|\s{1,64}"


def learn_bpe(
    lines: Iterable[str], *, vocabulary_size: int, special: Sequence[str], normal_form: list[normalizers.Normalizer]
) -> tokenizers.Tokenizer:
    """Byte pairs of at most so many entries."""
    backend = tokenizers.Tokenizer(models.BPE())
    # A space before the line gives its first word the piece it has elsewhere; the decoder takes exactly that space away again.
    backend.normalizer = normalizers.Sequence([*normal_form, normalizers.Prepend(" ")])
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    backend.pre_tokenizer = _pieces("bpe")
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(lines, trainer)
    unregistered = json.loads(backend.to_str()) | {"added_tokens": []}
    return tokenizers.Tokenizer.from_str(json.dumps(unregistered))


def learn_words(
    lines: Iterable[str], *, vocabulary_size: int, special: Sequence[str], normal_form: list[normalizers.Normalizer]
) -> tokenizers.Tokenizer:
    """The most frequent words between spaces, or with 0 all of them."""
    normalizer = normalizers.Sequence(normal_form)
    counts = Counter(word for line in lines for word in normalizer.normalize_str(line).split(" "))
    for not_a_word in ("", *special):
        del counts[not_a_word]
    backend = _learn_entries(counts, vocabulary_size=vocabulary_size, special=special, names="words")
    backend.normalizer = normalizer
    backend.pre_tokenizer = _pieces("whitespace")
    return backend


def learn_characters(
    lines: Iterable[str], *, vocabulary_size: int, special: Sequence[str], normal_form: list[normalizers.Normalizer]
) -> tokenizers.Tokenizer:
    """The most frequent code points, or with 0 all of them."""
    normalizer = normalizers.Sequence(normal_form)
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(normalizer.normalize_str(line))
    backend = _learn_entries(counts, vocabulary_size=vocabulary_size, special=special, names="characters")
    backend.normalizer = normalizer
    backend.pre_tokenizer = _pieces("characters")
    backend.decoder = decoders.Fuse()
    return backend


def cuts_at_spaces(backend: tokenizers.Tokenizer, kind: str) -> bool:
    """Whether this is how a tokenizer of that kind is learnt here, so that a text may be cut before a space and its parts be encoded alone.

    What is before the space must end with other than white space, and something must be behind it. Byte pairs put the space before each
    part, as they do before a text; of words it has no id; with characters it is the id between the parts. No normal form joins a space to
    what is before or behind it.
    """
    if kind not in ("bpe", "whitespace", "characters") or backend.normalizer is None or backend.pre_tokenizer is None:
        return False
    lead = [normalizers.Prepend(" ")] if kind == "bpe" else []
    forms: list[list[normalizers.Normalizer]] = [[], [normalizers.NFC()], [normalizers.NFKC()]]
    return (
        backend.normalizer.__getstate__() in [normalizers.Sequence([*form, *lead]).__getstate__() for form in forms]
        and backend.pre_tokenizer.__getstate__() == _pieces(kind).__getstate__()
        and not getattr(backend.model, "dropout", None)
        and not (backend.padding or backend.truncation or backend.get_added_tokens_decoder())
    )


def _pieces(kind: str) -> pre_tokenizers.PreTokenizer:
    """What a kind of tokenizer cuts text into, before it looks these pieces up or merges within them."""
    if kind == "whitespace":
        return pre_tokenizers.Split(" ", "removed")
    if kind == "characters":
        return pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(PIECES), "isolated"), byte_level])


def _learn_entries(counts: Counter[str], *, vocabulary_size: int, special: Sequence[str], names: str) -> tokenizers.Tokenizer:
    """The special tokens and the most frequent of what was counted, or all of it."""
    by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
    frequent = by_frequency[: vocabulary_size - len(special)] if vocabulary_size else by_frequency
    if rare := by_frequency[len(frequent) :]:
        share = sum(counts[word] for word in rare) / counts.total()
        notice = "the vocabulary of %d leaves out %d of %d %s, %.2f %% of the text, which become <unk>; data.vocabulary_size=0 keeps all"
        logger.warning(notice, vocabulary_size, len(rare), len(counts), names, 100 * share)
    vocabulary = {word: token for token, word in enumerate([*special, *frequent])}
    return tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=special[3]))
