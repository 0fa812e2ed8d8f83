"""The decoder-only models of a server, which go on with text, and their work as the engine does it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dragoman.bundle import Bundle
from dragoman.decoding.generate import Addition, Generator
from dragoman.decoding.generation_options import GenerationOptions
from dragoman.serve.places import Place


@dataclass(frozen=True, eq=False)
class Completer:
    """A decoder-only model at work."""

    place: Place
    generator: Generator
    made: int  # seconds since 1970

    @classmethod
    def of(cls, place: Place, bundle: Bundle, *, precision: str) -> "Completer":
        """Of a place whose weights have been read; UsageError for a precision that there is not."""
        made = int((place.folder / "config.json").stat().st_mtime)
        return cls(place, Generator(bundle, precision=precision), made)  # type: ignore[arg-type]  # checked there

    @property
    def name(self) -> str:
        """The name under which requests ask for it: the run's, or the folder's."""
        return self.place.name

    def facts(self) -> dict[str, Any]:
        """What `/v1/models` says of it: OpenAI's fields, and how many tokens prompt and continuation may have together."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.made,
            "owned_by": "dragoman",
            "max_model_len": self.generator.most_positions,
        }


class Prompt(NamedTuple):
    """A prompt, its tokens, and how it is gone on with."""

    text: str
    tokens: int
    options: GenerationOptions


@dataclass(frozen=True)
class Drawing:
    """How prompts are gone on with: those for which this is equal are drawn together, of whatever requests.

    ``shared`` are the options but n, max_tokens and seed; ``best`` is how many of the most probable tokens are told.
    """

    completer: Completer
    shared: GenerationOptions
    best: int

    def together(self, prompts: Sequence[Prompt]) -> Iterator[list[tuple[int, Addition]]]:
        """What each step adds, with the place of its prompt."""
        generator = self.completer.generator
        for additions in generator.streams([each.text for each in prompts], [each.options for each in prompts], best=self.best):
            yield [(addition.prompt, addition) for addition in additions]
