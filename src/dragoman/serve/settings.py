"""What a server may be told, from the command line or from LibreTranslate's environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from dragoman.errors import UsageError

WIDEST_BEAM = 16
"""Hypotheses of a sentence that a request may ask for, if ``alternatives_limit`` asks for no more."""


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Limits and places of a server; the defaults are those of `dragoman serve`. Times in seconds, sizes in bytes; 0: no such limit."""

    host: str = "127.0.0.1"
    port: int = 5000
    device: str = "auto"
    precision: str = "fp32"
    threads: int = 0  # 0: PyTorch's own choice
    beam: int | None = None  # the model's own
    alpha: float | None = None
    batch: int = 32  # texts decoded together
    batch_tokens: int = 4096  # of their source tokens
    queue: int = 512  # texts that wait
    max_wait: float = 15.0  # for a place in the queue
    timeout: float = 60.0  # for an answer
    file_timeout: float = 600.0  # for a translated file
    char_limit: int = 5000
    batch_limit: int = 64
    alternatives_limit: int = 10
    req_limit: int = 0  # requests a minute of one client
    body_limit: int = 1_000_000
    file_limit: int = 10_000_000
    keys: Path | None = None
    suggestions: Path | None = None
    public_url: str = ""
    url_prefix: str = ""
    trust_proxy: bool = False
    metrics_token: str = ""
    split_sentences: bool = True
    access_log: bool = True
    files: bool = True
    explain: bool = True  # routes that look inside
    watch: bool = False  # runs without a checkpoint, too

    def __post_init__(self) -> None:
        """UsageError for what cannot be."""
        for name in ("batch", "batch_tokens", "queue", "body_limit", "file_limit"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: it must be at least 1")
        for name in ("threads", "max_wait", "char_limit", "batch_limit", "alternatives_limit", "req_limit"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}={getattr(self, name)}: it must be 0 or more")
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port={self.port}: it must be between 0 (any that is free) and 65535")
        for name in ("timeout", "file_timeout"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name}={getattr(self, name)}: it must be more than 0 seconds")
        if self.precision == "auto":
            raise UsageError("precision=auto: a server has no sentences to choose on before it answers; give fp32, bf16 or int8")
        if self.public_url and not self.public_url.startswith(("http://", "https://")):
            raise UsageError(f"public_url={self.public_url}: it must begin with http:// or https://")
        if self.url_prefix and (not self.url_prefix.startswith("/") or self.url_prefix.endswith("/")):
            raise UsageError(f"url_prefix={self.url_prefix}: it must begin with / and not end with it, as /translator does")
        if self.beam is not None and not 1 <= self.beam <= self.widest_beam:
            raise UsageError(f"beam={self.beam}: it must be between 1 and {self.widest_beam}")

    @property
    def widest_beam(self) -> int:
        """The most hypotheses of a sentence."""
        return max(WIDEST_BEAM, self.alternatives_limit + 1)

    @property
    def on_loopback(self) -> bool:
        """Whether only programs on this machine reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


_NAMES = {
    "LT_HOST": ("host", str),
    "LT_PORT": ("port", int),
    "LT_CHAR_LIMIT": ("char_limit", int),
    "LT_BATCH_LIMIT": ("batch_limit", int),
    "LT_ALTERNATIVES_LIMIT": ("alternatives_limit", int),
    "LT_REQ_LIMIT": ("req_limit", int),
    "LT_URL_PREFIX": ("url_prefix", str),
    "LT_METRICS_AUTH_TOKEN": ("metrics_token", str),
    "LT_THREADS": ("threads", int),
}
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Fields of the settings that LibreTranslate's environment variables give; UsageError that names one that cannot be read.

    Its -1, no limit, is our 0. ``LT_API_KEYS`` is a file of keys or, as true, the file keys.json; ``LT_SUGGESTIONS`` the same with
    suggestions.tsv; ``LT_DISABLE_FILES_TRANSLATION`` turns files off.
    """
    found: dict[str, object] = {}
    for name, (field, kind) in _NAMES.items():
        text = environment.get(name, "").strip()
        if not text:
            continue
        try:
            value = kind(text)
        except ValueError:
            raise UsageError(f"{name}={text}: not a whole number; correct the environment variable, or unset it") from None
        found[field] = max(value, 0) if isinstance(value, int) else value
    for name, field, default in (("LT_API_KEYS", "keys", "keys.json"), ("LT_SUGGESTIONS", "suggestions", "suggestions.tsv")):
        text = environment.get(name, "").strip()
        if text.lower() not in _FALSE:
            found[field] = Path(default if text.lower() in _TRUE else text)
    if environment.get("LT_DISABLE_FILES_TRANSLATION", "").strip().lower() in _TRUE:
        found["files"] = False
    return found
