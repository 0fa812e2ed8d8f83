"""``dragoman keys``: who may ask a server."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import AsJson
from dragoman.cli.streams import notify, print_json
from dragoman.errors import DragomanError, UsageError

Action = Annotated[str, typer.Argument(metavar="ACTION", help="add, list or remove.")]
Name = Annotated[str | None, typer.Argument(metavar="NAME", help="What the key is called, for add and remove.", show_default=False)]
KeysFile = Annotated[Path, typer.Option("--keys", metavar="FILE", help="The file of keys, which `dragoman serve --keys` reads.")]
ReqLimit = Annotated[
    int | None,
    typer.Option("--req-limit", min=0, metavar="N", help="Most requests a minute with this key; 0: any number. Default: the server's."),
]
CharLimit = Annotated[
    int | None,
    typer.Option("--char-limit", min=0, metavar="N", help="Most characters of a request with this key; 0: any. Default: the server's."),
]


def keys(
    action: Action,
    name: Name = None,
    file: KeysFile = Path("keys.json"),
    req_limit: ReqLimit = None,
    char_limit: CharLimit = None,
    as_json: AsJson = False,
) -> None:
    """Keys of a server: add one, list them, remove one.

    A new key is printed once and is nowhere else: the file has only its SHA-256. A server that runs sees the change with the next request.
    """
    if action not in ("add", "list", "remove"):
        raise UsageError(f"{action}: unknown; choose among add, list, remove")
    if (action == "list") is not (name is None):
        raise UsageError(f"{action}: {'takes no NAME' if action == 'list' else 'give the NAME of the key'}")
    if action == "add" and not (name and name.isprintable()):
        raise UsageError(f"{name!r}: not a name of a key, which list prints on a line; give one of letters, digits and signs, in UTF-8")
    if action != "add" and not (req_limit is None and char_limit is None):
        raise UsageError(f"{action}: limits are for add")
    from dragoman.serve.keys import changing

    with nullcontext() if action == "list" else changing(file):
        _keys(action, name or "", file, {"req_limit": req_limit, "char_limit": char_limit}, as_json=as_json)


def _keys(action: str, name: str, file: Path, limits: Mapping[str, int | None], *, as_json: bool) -> None:
    """What the command does."""
    from dragoman.serve.keys import new_key, read_keys, write_keys

    known = read_keys(file) if action != "add" or file.exists() else []
    names = {key.name for key in known}
    if action == "list":
        entries = [{entry: value for entry, value in key.document().items() if entry != "sha256"} for key in known]
        if as_json:
            print_json(entries)
        for entry in [] if as_json else entries:
            print(*(f"{value}" if field == "name" else f"{field}={value}" for field, value in entry.items()), sep="\t")
    elif action == "remove":
        if name not in names:
            raise DragomanError(f"{file}: has no key {name!r}; it has {', '.join(sorted(names)) or 'none'}")
        write_keys(file, [key for key in known if key.name != name])
        notify(f"{file}: the key {name} is removed")
    else:
        if name in names:
            raise DragomanError(f"{file}: has a key {name!r} already; remove it first, or give another name")
        text, key = new_key(name, **limits)
        write_keys(file, [*known, key])
        if as_json:
            print_json({"name": name, "key": text})
        else:
            print(text)
