"""Which language a text is in, by its sequences of three characters, counted from the training text of the loaded models.

A run folder gets ``languages.json`` the first time it is served: the most frequent trigrams of both sides of its training text. The
probability of a language is that of the text's trigrams, each with one count added for what was never seen (naive Bayes, all languages
equally likely before).
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.bundle import Bundle
from dragoman.data.corpus import Corpus
from dragoman.errors import DragomanError
from dragoman.files import write_file
from dragoman.serve.languages import normal_code

FORMAT_VERSION = 1
FILE = "languages.json"
_KEPT = 4000  # trigrams of a language
_PAIRS = 20_000  # of the training text that are counted
_READ = 2000  # characters of a text that are looked at
_KINDS = 200_000  # trigrams that there might be: what was never seen has one count in so many more

_log = logging.getLogger("dragoman")


@dataclass(frozen=True)
class Profile:
    """How often each trigram stands in text of a language, and how many there were in all."""

    counts: Mapping[str, int]
    total: int

    @classmethod
    def of(cls, lines: Iterable[str]) -> "Profile":
        """That of some text."""
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(trigrams(line))
        return cls(dict(counts.most_common(_KEPT)), counts.total())

    def log_probability(self, found: Mapping[str, int]) -> float:
        """Of a text with these trigrams, natural."""
        return math.fsum(many * math.log((self.counts.get(each, 0) + 1) / (self.total + _KINDS)) for each, many in found.items())


def trigrams(text: str) -> Iterator[str]:
    """The sequences of three characters of a text in small letters, its words one space apart, a space at both ends."""
    padded = f" {' '.join(text.lower().split())} "
    return (padded[place : place + 3] for place in range(len(padded) - 2))


def detect(text: str, profiles: Mapping[str, Profile], candidates: Sequence[str]) -> list[tuple[str, float]]:
    """The candidates with their probability × 100, the most probable first; all languages with a profile share the probability.

    A candidate without a profile has 0, and so have all of a text without letters, in the order given.
    """
    found = Counter(trigrams("".join(character if character.isalpha() else " " for character in text[:_READ])))
    found.pop("   ", None)
    if not any(each.strip() for each in found) or not profiles:
        return [(code, 0.0) for code in candidates]
    logs = {code: profile.log_probability(found) for code, profile in profiles.items()}
    highest = max(logs.values())
    weights = {code: math.exp(value - highest) for code, value in logs.items()}
    whole = math.fsum(weights.values())
    shares = [(code, 100 * weights.get(code, 0.0) / whole) for code in candidates]
    order = {code: logs.get(code, -math.inf) for code in candidates}
    return sorted(shares, key=lambda share: -order[share[0]])


def profiles_of(folder: Path, bundle: Bundle) -> dict[str, Profile]:
    """The profiles of a model's languages: those beside it, or counted now from its run's corpus and kept there; none without either.

    ``folder`` is the bundle that was loaded. Of a model with tags the targets are mixed in the corpus, so only the source has a profile.
    """
    run = folder.parents[1] if folder.parent.name == "checkpoints" else folder
    for place in dict.fromkeys((folder / FILE, run / FILE)):
        if place.is_file():
            return _read(place)
    try:
        text = run / "corpus" / "train"
        corpus = Corpus.open(text) if (text / "corpus.json").is_file() else None
    except DragomanError as error:
        _log.warning("%s; languages cannot be detected by it", error)
        corpus = None
    if corpus is None:
        return {}
    profiles = _counted(corpus, bundle)
    try:
        write_file(run / FILE, json.dumps(_document(profiles), ensure_ascii=False) + "\n")
    except DragomanError:
        _log.info("%s: cannot be written, so the languages are counted again at every start", run / FILE)
    return profiles


def _counted(corpus: Corpus, bundle: Bundle) -> dict[str, Profile]:
    data, step = bundle.config.data, max(len(corpus) // _PAIRS, 1)
    sides = [
        (data.source, bundle.source_tokenizer, corpus.source_ids, corpus.source_starts, corpus.source_lengths),
        (data.target, bundle.target_tokenizer, corpus.target_ids, corpus.target_starts, corpus.target_lengths),
    ]
    profiles = {}
    for code, tokenizer, ids, starts, lengths in sides[: 1 if bundle.source_tokenizer.tags else 2]:
        rows = (ids[starts[place] : starts[place] + lengths[place]].tolist() for place in range(0, len(corpus), step))
        profiles[normal_code(code)] = Profile.of(map(tokenizer.decode, rows))
    return profiles


def _document(profiles: Mapping[str, Profile]) -> dict[str, object]:
    languages = {code: {"total": profile.total, "trigrams": profile.counts} for code, profile in profiles.items()}
    return {"format": FORMAT_VERSION, "languages": languages}


def _read(path: Path) -> dict[str, Profile]:
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT_VERSION:
            raise ValueError(f"format {document['format']!r}")
        profiles = {}
        for code, entry in document["languages"].items():
            counts = {str(each): int(many) for each, many in entry["trigrams"].items()}
            profiles[normal_code(code)] = Profile(counts, int(entry["total"]))
            if min(counts.values(), default=1) < 1 or profiles[normal_code(code)].total < sum(counts.values()):
                raise ValueError(f"impossible counts of {code}")
        return profiles
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DragomanError(f"{path}: not the languages of a run ({error}); remove the file, and it is made anew") from None
