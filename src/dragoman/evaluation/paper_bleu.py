"""The words that the paper's BLEU counts (Table 2): Moses's rules, and compounds split at their hyphens.

The scores of Table 2 were computed as the authors' evaluation script does it: typographic punctuation replaced by ASCII, the words split
as the Moses tokenizer splits them, `rich-text` made `rich ##AT##-##AT## text`, and BLEU without smoothing over those words. The rules
here are those of the Moses tokenizer without its lists of abbreviations: a period at the end of a word is a word of its own unless the word
is a single letter, has a period inside, is followed by a word in lower case or, in German, is an ordinal number up to 99.
"""

import re
import unicodedata
from itertools import pairwise

_PUNCTUATION = {"“": '"', "”": '"', "「": '"', "」": '"', "《": '"', "》": '"', "’": "'", "…": "...", "、": ",", "。": ". "}
_REPLACED = str.maketrans(_PUNCTUATION | {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)})  # full-width forms

_SIGN = re.compile(r"[^\w\s.'`,-]|_")
_DOTS = re.compile(r"\.{2,}")
_COMMA = re.compile(r"(?<!\d),|,(?!\d)")
_APOSTROPHE_BEFORE = ("en",)  # it 's
_APOSTROPHE_AFTER = ("fr", "it", "ga", "ca")  # l' homme
_LETTER = r"[^\W\d_]"
_COMPOUND = re.compile(r"(\S)-(\S)")
_CONTROL = re.compile(r"[\x00-\x1f]")


def paper_words(text: str, *, language: str = "") -> str:
    """The words of a line of plain text as the paper's BLEU counts them, with single spaces between them.

    ``language`` is the code of the text's language: it decides where an apostrophe belongs.
    """
    return split_compounds(" ".join(moses_words(text.translate(_REPLACED), language=language)))


def split_compounds(text: str) -> str:
    """Words joined by a hyphen as two words with the mark of the authors' script between them; the hyphen of words already apart stays."""
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", text)


def moses_words(text: str, *, language: str = "") -> list[str]:
    """The words of a line by the rules of the Moses tokenizer, without its lists of abbreviations and without escapes such as &quot;."""
    text = _SIGN.sub(_apart, _CONTROL.sub("", text.replace("\t", " ")))
    text = _COMMA.sub(" , ", _DOTS.sub(r" \g<0> ", text))
    words = _apostrophes(text, language).split()
    found: list[str] = []
    for word, following in pairwise([*words, ""]):
        found += [word] if _keeps_period(word, following, language) else [word[:-1], "."]
    return found


def _apart(sign: re.Match[str]) -> str:
    """A sign as a word of its own; an accent that stands beside its letter stays there."""
    return sign[0] if unicodedata.category(sign[0])[0] == "M" else f" {sign[0]} "


def _apostrophes(text: str, language: str) -> str:
    if language not in _APOSTROPHE_BEFORE + _APOSTROPHE_AFTER:
        return text.replace("'", " ' ")
    text = re.sub(rf"(?<!{_LETTER})'|'(?!{_LETTER})", lambda found: _at_a_figure(found, text, language), text)
    joined = r" '" if language in _APOSTROPHE_BEFORE else r"' "
    return re.sub(rf"(?<={_LETTER})'(?={_LETTER})", joined, text)


def _at_a_figure(found: re.Match[str], text: str, language: str) -> str:
    """An apostrophe with no letter on one of its sides: apart, but 1990 's in English."""
    decade = language in _APOSTROPHE_BEFORE and text[max(found.start() - 1, 0)].isdigit() and text[found.end() :].startswith("s")
    return " '" if decade else " ' "


def _keeps_period(word: str, following: str, language: str) -> bool:
    """Whether a word ends with no period, or with one that belongs to it."""
    stem = word[:-1]
    if not word.endswith(".") or not stem or stem.endswith("."):
        return True
    initial = len(stem) == 1 and (stem.isupper() or (language == "de" and stem.isalpha()))
    ordinal = language == "de" and stem.isdigit() and len(stem) <= 2
    return initial or ordinal or ("." in stem and any(map(str.isalpha, stem))) or following[:1].islower()
