"""What `dragoman serve` looks into models with: `explain`, in the form that a server takes.

It is imported when somebody looks: a server that only translates has its memory for other things.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.bundle import Bundle
from dragoman.serve.traces import Wished

if TYPE_CHECKING:
    from dragoman.explain.answer import Explanation


@dataclass(frozen=True)
class Looked:
    """A pass that is kept: `serve.traces.Pass`."""

    found: "Explanation"
    size: int
    wish: Wished
    name: str
    run: Path | None

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of attention that the model has."""
        return self.found.kinds

    @property
    def pieces(self) -> int:
        """The pieces of the text or of what became of it, whichever are more."""
        return max(len(self.found.source.ids), len(self.found.target.side.ids))

    def record(self, *, kinds: Sequence[str], top_k: int) -> dict[str, Any]:
        """All of it, as `dragoman explain --json` prints it, with the pictures of some kinds of attention and of the search's tree."""
        from dragoman.explain.page_search import tree_svg

        found = self.found
        pictures = {} if found.beams is None else {"pictures": {"tree": tree_svg(found, found.beams)}}
        return {**found.record(kinds=kinds, top_k=top_k), **pictures}

    def names(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return self.found.names_tensor(name)

    def near(self, name: str) -> list[str]:
        """The names that are most like this one."""
        return self.found.near(name)

    def shape(self, name: str) -> Sequence[int]:
        """The shape of a tensor."""
        return self.found.array(name).shape

    def slice_of(self, name: str, *, index: Sequence[int], rows: slice, cols: slice) -> dict[str, Any]:
        """Exact numbers of a tensor as JSON; UsageError for an index that there is not."""
        return self.found.slice_of(name, index=index, rows=rows, cols=cols)

    def walk(self, *, layer: int | None, head: int | None, token: int | str | None, target_token: int | str | None) -> dict[str, Any]:
        """The walk as `dragoman explain --json` prints it; beside each step its picture, its largest difference and a command."""
        from dragoman.explain.steps import focus_on
        from dragoman.explain.walk import walk
        from dragoman.training.report import learning_rates

        focus = focus_on(self.found, layer=layer, head=head, token=token, target_token=target_token)
        steps = walk(self.found, focus, rates=[] if self.run is None else learning_rates(self.run))
        return {
            "focus": vars(focus),
            "steps": [
                {
                    **step.record(),
                    "picture": step.picture,
                    "difference": max((check.difference for check in step.checks), default=0.0),
                    "command": self._command(step.tensor) if step.tensor else "",
                }
                for step in steps
            ],
        }

    def _command(self, tensor: str) -> str:
        """What writes a tensor of the same pass into a file, and below it in a comment what MODEL in it stands for.

        The server knows the model's folder, but does not tell those who ask over HTTP where its files are.
        """
        wish = self.wish
        options = {
            "--tensor": tensor, "--npy": "tensor.npy", "--beam": wish.beam, "--alpha": wish.alpha, "--max-length": wish.max_length,
            "--target-prefix": wish.target_prefix or None, "--candidate": wish.chosen + 1 if wish.chosen else None,
        }  # fmt: skip
        given = [f"{option}={value}" for option, value in options.items() if value is not None]
        command = shlex.join(["dragoman", "explain", *given, "--", "MODEL", self.found.source.text])
        return f"{command}\n# MODEL: the folder of the model {' '.join(self.name.split())}, which whoever runs the server knows"


class Looking:
    """`serve.traces.Looking`, by `dragoman.explain`."""

    def expected_bytes(self, bundle: Bundle, source: int, target: int, reference: int) -> int:
        """About how much memory a pass of so many pieces takes; of a model of one text they are the target's."""
        from dragoman.explain.keeping import expected_bytes

        return expected_bytes(bundle.config.model, source, target, reference=reference)

    def look(self, bundle: Bundle, text: str, wish: Wished, *, name: str, run: Path | None, check: Callable[[], None]) -> Looked:
        """A pass, with the numbers that can be asked for later; DragomanError for a text that cannot be looked into."""
        from dragoman.explain.answer import explain
        from dragoman.explain.keeping import compacted, held_bytes

        found = compacted(explain(bundle, text, **vars(wish), check=check))
        return Looked(found, held_bytes(found), wish, name, run)
