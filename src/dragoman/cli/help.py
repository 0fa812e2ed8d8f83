"""What ``--help`` prints of the parameters of a verb: their names as the verb's sentences have them, and not the types of Python."""

import re
from typing import Any

from typer.core import TyperCommand

_TYPE = re.compile(r" <[^>]*>$")


class Verb(TyperCommand):
    """A verb, whose arguments are told by their names, with ``…`` where there may be several, and without their types."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the arguments and the options, in two columns each."""
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                name = _TYPE.sub("", record[0]).strip("[]{}.")
                rows["Arguments"].append((f"{name}…" if parameter.nargs == -1 else name, record[1]))
            else:
                rows["Options"].append(record)
        for title, some in rows.items():
            if some:
                with formatter.section(title):
                    formatter.write_dl(some)
