"""``dragoman serve``: models over HTTP, for clients of LibreTranslate and of OpenAI, and for programs that want to know more."""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Device, Products, Quiet
from dragoman.cli.streams import few_of_a_kind, hush, notify
from dragoman.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.serve.stops import Stops

Whole = int | None
Text = str | None

Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL",
        help="Run folders (their best checkpoints), checkpoint folders or bundles: one for each pair of languages, and models of one text.",
    ),
]
Host = Annotated[
    Text, typer.Option("--host", metavar="HOST", help="The address to listen at; 0.0.0.0 is every one of this machine. Default: 127.0.0.1.")
]
Port = Annotated[Whole, typer.Option("--port", metavar="N", help="The port to listen at; 0 is any that is free. Default: 5000.")]
Beam = Annotated[
    Whole,
    typer.Option("--beam", metavar="K", min=1, help="Hypotheses of a search, where a request does not say. Default: each model's own."),
]
Alpha = Annotated[
    float | None,
    typer.Option("--alpha", metavar="A", min=-10, max=10, help="Length penalty, where a request does not say. Default: each model's own."),
]
Batch = Annotated[
    Whole, typer.Option("--batch", min=1, metavar="N", help="Most texts decoded together, of however many requests. Default: 32.")
]
BatchTokens = Annotated[
    Whole, typer.Option("--batch-tokens", min=1, metavar="N", help="Most source tokens of the texts decoded together. Default: 4096.")
]
Queue = Annotated[
    Whole, typer.Option("--queue", min=1, metavar="N", help="Texts that may wait; requests beyond wait for a place. Default: 512.")
]
MaxWait = Annotated[
    float | None,
    typer.Option("--max-wait", min=0, metavar="SECONDS", help="How long a request waits for a place, before a 503. Default: 15."),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0.001, metavar="SECONDS", help="How long an answer may take, before a 503. Default: 60."),
]
FileTimeout = Annotated[
    float | None,
    typer.Option("--file-timeout", min=0.001, metavar="SECONDS", help="The same for a whole file of /translate_file. Default: 600."),
]
CharLimit = Annotated[
    Whole,
    typer.Option("--char-limit", metavar="N", help="Most characters of a request, all its texts together; 0: any number. Default: 5000."),
]
BatchLimit = Annotated[Whole, typer.Option("--batch-limit", metavar="N", help="Most texts of a request; 0: any number. Default: 64.")]
Alternatives = Annotated[Whole, typer.Option("--alternatives-limit", min=0, metavar="N", help="Most alternatives of a text. Default: 10.")]
ReqLimit = Annotated[
    Whole, typer.Option("--req-limit", metavar="N", help="Most requests a minute of one address, or of one key; 0: any number. Default: 0.")
]
Keys = Annotated[
    Path | None,
    typer.Option("--keys", metavar="FILE", help="Only these keys may ask; `dragoman keys add NAME` makes one. Default: everyone may."),
]
Suggestions = Annotated[
    Path | None,
    typer.Option(
        "--suggestions", metavar="FILE.tsv", help="Where better translations that users send are kept. Default: nowhere, they are refused."
    ),
]
PublicUrl = Annotated[
    Text,
    typer.Option("--public-url", metavar="URL", help="Where clients find this server, for the links in answers. Default: as they ask."),
]
UrlPrefix = Annotated[Text, typer.Option("--url-prefix", metavar="/PATH", help="What stands before every route. Default: nothing.")]
TrustProxy = Annotated[
    bool, typer.Option("--trust-proxy", help="Believe X-Forwarded-For, -Proto and -Host, which a proxy before this server sets.")
]
MetricsToken = Annotated[
    Text, typer.Option("--metrics-token", metavar="TOKEN", help="What /metrics asks for as Authorization: Bearer. Default: nothing.")
]
Split = Annotated[
    bool,
    typer.Option(
        "--split-sentences/--no-split-sentences",
        show_default=False,
        help="Translate each sentence of a line by itself, as models of single sentences want it, or each line whole. Default: split.",
    ),
]
Threads = Annotated[Whole, typer.Option("--threads", min=1, metavar="N", help="Threads that compute. Default: as many as PyTorch takes.")]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain/--no-explain", show_default=False, help="Let requests look inside the models at work on a text. Default: they may."
    ),
]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        help="Serve runs that have no checkpoint yet as well: the page shows their curves as they train. Models are still loaded at the "
        "start and at SIGHUP alone. Default: such a run is an error.",
    ),
]
AccessLog = Annotated[
    bool,
    typer.Option(
        "--access-log/--no-access-log",
        show_default=False,
        help="A line of JSON on standard error for each request, but for polls of /health and /livez that are answered: route, status, "
        "seconds, lengths; never text, key or address. Default: on.",
    ),
]


def serve(
    context: typer.Context,
    models: Models,
    host: Host = None,
    port: Port = None,
    device: Device = "auto",
    precision: Products = "fp32",
    threads: Threads = None,
    beam: Beam = None,
    alpha: Alpha = None,
    split_sentences: Split = True,
    batch: Batch = None,
    batch_tokens: BatchTokens = None,
    queue: Queue = None,
    max_wait: MaxWait = None,
    timeout: Timeout = None,
    file_timeout: FileTimeout = None,
    char_limit: CharLimit = None,
    batch_limit: BatchLimit = None,
    alternatives_limit: Alternatives = None,
    req_limit: ReqLimit = None,
    keys: Keys = None,
    suggestions: Suggestions = None,
    public_url: PublicUrl = None,
    url_prefix: UrlPrefix = None,
    trust_proxy: TrustProxy = False,
    metrics_token: MetricsToken = None,
    explain: Explain = True,
    watch: Watch = False,
    access_log: AccessLog = True,
    quiet: Quiet = False,
) -> None:
    """Serve models over HTTP: LibreTranslate's routes, OpenAI's for text, and our own under /api/v1, all of which the server's /docs lists.

    Several models make several language pairs, and two of them another where no model leads there by itself. Decoder-only models go on with
    text at /v1/completions, and all models can be looked into. Texts of all requests are decoded together. SIGTERM or Ctrl-C finishes what
    was begun and leaves; SIGHUP loads the newest checkpoints. Where an option is not given, LibreTranslate's environment variable of the
    same meaning counts (LT_HOST, LT_PORT, LT_CHAR_LIMIT, LT_BATCH_LIMIT, LT_REQ_LIMIT, LT_ALTERNATIVES_LIMIT, LT_API_KEYS, LT_SUGGESTIONS,
    LT_URL_PREFIX, LT_THREADS, LT_METRICS_AUTH_TOKEN, LT_DISABLE_FILES_TRANSLATION).
    """
    if quiet:
        hush()
    from dragoman.serve.stops import Stops

    given = {name: value for name, value in context.params.items() if name not in ("models", "quiet") and value is not None}
    with Stops() as stops, few_of_a_kind():
        _serve(models, given, say=_say if not quiet else _nothing, stops=stops)


def _serve(models: list[Path], given: Mapping[str, Any], *, say: Callable[[str], None], stops: "Stops") -> None:
    """Imports what serves, which takes a second or more, and lets it; nothing when the process has been told to stop by then."""
    try:
        with _nothing_to_collect():
            from dragoman.devices import forget_sources

            forget_sources()  # of PyTorch, so that what comes now takes their place
            from dragoman.cli.looking import Looking
            from dragoman.serve.server import serve as run_server
            from dragoman.serve.settings import ServeSettings, from_environment
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "python_multipart", "multipart", "h11", "anyio"):
            raise
        raise DragomanError(f"serving needs the package {error.name}; pip install 'dragoman[serve]'") from None
    settings = ServeSettings(**{**from_environment(os.environ), **given})
    if stops.asked:
        notify("stopped")
    else:
        run_server(models, settings, say=say, stops=stops, looking=Looking())


@contextmanager
def _nothing_to_collect() -> Iterator[None]:
    """For imports: nearly all that they make stays, and to look for what does not, again and again, takes time.

    What does not stay is let go of when the models have been read.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was:
            gc.enable()


def _say(line: str) -> None:
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _nothing(line: str) -> None:
    """Stands for the access log under ``--quiet``."""
