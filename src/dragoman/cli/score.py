"""``dragoman score``: what a model thinks of translations, or texts, that are already there, one by one and all together."""

import math
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Alpha, Device, ModelPath, Quiet, TestPaths
from dragoman.cli.score_lines import print_scores
from dragoman.cli.search_options import Ensemble, name_of
from dragoman.cli.stops import terminable
from dragoman.cli.streams import hush, json_line, notify, one_line, print_json
from dragoman.errors import DragomanError, UsageError, counted

if TYPE_CHECKING:
    from dragoman.decoding.score import Perplexity, Scored
    from dragoman.decoding.translate import Translator

PAIRS_AT_ONCE = 4096


def score(
    model: ModelPath,
    test: TestPaths,
    text: Annotated[bool, typer.Option("--text", help="Put a tab and the given translation or text at the end of each line.")] = False,
    alpha: Alpha = None,
    ensemble: Ensemble = None,
    perplexity: Annotated[
        bool, typer.Option("--perplexity", help="Print the perplexity of the corpus, a token and a word, instead of a line for each pair.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object for each pair: texts, log-probability, score, tokens and token scores; with --perplexity one of all.",
        ),
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """The log-probability of given translations: each target line as the translation of its source line; or of texts.

    With a decoder-only model --test is a text file, each line a whole text; with an encoder-only model too, and the logarithm is a
    pseudo-likelihood: of each token, masked, given all the others of its line, without start and end.

    One line for each pair, in order: `LOG_PROBABILITY<tab>TOKENS`. The natural logarithm is summed over the target's tokens, the end token
    included, as in the scores of translate; TOKENS is their number. With --alpha the score after the length penalty is a third column;
    --json has it always.

    The perplexity of it all is said on standard error, and with --perplexity on standard output: exp of minus the sum over the number of
    tokens, as in the paper's Table 3, and over the number of words between spaces, which does not depend on the vocabulary; both numbers
    count one end for each pair. For texts a byte as well.
    """
    if quiet:
        hush()
    if perplexity and (text or alpha is not None):
        raise UsageError("--perplexity: there are no lines for --text or --alpha; leave them out")
    with terminable() as check:
        _score(
            model, test, text=text, alpha=alpha, ensemble=ensemble or [], perplexity=perplexity, as_json=as_json, device=device, check=check
        )


def _score(
    model: Path, test: list[str], *, text: bool, alpha: float | None, ensemble: list[Path], perplexity: bool, as_json: bool, device: str,
    check: Callable[[], None],
) -> None:  # fmt: skip
    from dragoman.bundle import load_bundle
    from dragoman.data.formats.pairs import read_pairs
    from dragoman.decoding.score import Perplexity
    from dragoman.decoding.translate import Translator
    from dragoman.devices import pick_device

    where = str(pick_device(device))
    bundle = load_bundle(model, device=where)
    if bundle.config.model.single:
        if ensemble:
            raise UsageError(f"--ensemble: for models that translate, and {model} is {bundle.config.model.architecture}; leave it out")
        return print_scores(bundle, str(model), test, text=text, alpha=alpha, perplexity=perplexity, as_json=as_json, check=check)
    translator = Translator(bundle, ensemble={str(other): load_bundle(other, device=where) for other in ensemble})
    languages = bundle.config.data
    for spec in test:  # a fault in the last is said before the first is scored
        for _ in read_pairs(spec, languages.source, languages.target):
            pass
    total, plain = Perplexity(), bundle.target_tokenizer.plain
    for spec in test:
        pairs = read_pairs(spec, languages.source, languages.target)
        for number, (source, target, scored) in enumerate(_scored(translator, pairs, spec, alpha, check), start=1):
            total.add(scored, plain(target))
            if perplexity:
                continue
            if as_json:
                sys.stdout.write(_json_line(number, source, target, scored))
            else:
                print(_columns(target if text else None, scored, with_score=alpha is not None))
    _conclude(total, {"model": name_of(model, ensemble), "test": test}, asked=perplexity, as_json=as_json)


def _conclude(total: "Perplexity", named: dict[str, Any], *, asked: bool, as_json: bool) -> None:
    """Print the perplexity, or say it on standard error where nobody asked."""
    if not asked:
        notify(
            f"perplexity {total.per_token:.3f} a token ({counted(total.tokens, 'token')}), {total.per_word:.3f} a word "
            f"({counted(total.words, 'word')}), one end for each of {counted(total.pairs, 'pair')} among them"
        )
    elif as_json:
        print_json({**named, **_facts(total)})
    else:
        for name, value in _facts(total).items():
            print(f"{name.replace('_', ' '):<21}{value:,.4f}" if isinstance(value, float) else f"{name.replace('_', ' '):<21}{value}")


def _facts(total: "Perplexity") -> dict[str, int | float | None]:
    shown = {"perplexity_per_token": total.per_token, "perplexity_per_word": total.per_word}
    return {
        **{name: value if math.isfinite(value) else None for name, value in shown.items()},  # JSON knows no infinity
        "log_probability": total.log_probability,
        "pairs": total.pairs,
        "tokens": total.tokens,
        "words": total.words,
    }


def _scored(
    translator: "Translator", pairs: Iterator[tuple[str, str]], spec: str, alpha: float | None, check: Callable[[], None]
) -> Iterator[tuple[str, str, "Scored"]]:
    first = 1
    while some := list(islice(pairs, PAIRS_AT_ONCE)):
        sources, targets = [source for source, _ in some], [target for _, target in some]
        try:
            scored = translator.score(sources, targets, alpha=alpha, first_line=first, check=check)
        except DragomanError as error:
            raise DragomanError(f"{spec}: {error}") from None
        yield from zip(sources, targets, scored, strict=True)
        first += len(some)


def _columns(target: str | None, scored: "Scored", *, with_score: bool) -> str:
    columns = [f"{scored.log_probability:.6f}", str(len(scored.tokens))]
    columns += [f"{scored.score:.6f}"] if with_score else []
    return "\t".join(columns if target is None else [*columns, one_line(target)])


def _json_line(number: int, source: str, target: str, scored: "Scored") -> str:
    return json_line(
        {
            "line": number,
            "source": source,
            "target": target,
            "log_probability": scored.log_probability,
            "score": scored.score,
            "tokens": scored.tokens,
            "token_scores": scored.token_scores,
        }
    )
