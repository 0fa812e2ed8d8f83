"""What the server has done, in Prometheus's text format: counts and times, no text, no key and no address."""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TEXTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class _Histogram:
    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def add(self, value: float) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: Mapping[str, object]) -> Iterable[str]:
        counts, so_far = self.counts or [0] * (len(self.bounds) + 1), 0
        for bound, many in zip((*self.bounds, "+Inf"), counts, strict=True):
            so_far += many
            yield f"{name}_bucket{_labels({**labels, 'le': bound})} {so_far}"
        yield f"{name}_sum{_labels(labels)} {self.total:.6f}"
        yield f"{name}_count{_labels(labels)} {so_far}"


class Metrics:
    """Counts since the start; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, int], int] = defaultdict(int)
        self._seconds: dict[str, _Histogram] = defaultdict(lambda: _Histogram(_SECONDS))
        self._batches = _Histogram(_TEXTS)
        self._decode = _Histogram(_SECONDS)
        self._tokens = {"in": 0, "out": 0}
        self.inflight = 0

    def answered(self, route: str, status: int, seconds: float) -> None:
        """A request on a route has been answered."""
        with self._lock:
            self._requests[route, status] += 1
            self._seconds[route].add(seconds)

    def decoded(self, texts: int, seconds: float) -> None:
        """So many texts have been decoded together."""
        with self._lock:
            self._batches.add(texts)
            self._decode.add(seconds)

    def tokens(self, read: int, written: int) -> None:
        """So many tokens have gone in and come out."""
        with self._lock:
            self._tokens["in"] += read
            self._tokens["out"] += written

    def text(self, *, waiting: int, models: Iterable[tuple[str, int | None]]) -> str:
        """Everything; ``waiting`` are the texts in the queue, ``models`` each model's run and step."""
        with self._lock:
            lines = [
                *_head("requests_total", "counter", "Requests answered, by route and status."),
                *(
                    f"dragoman_requests_total{_labels({'route': route, 'status': status})} {many}"
                    for (route, status), many in sorted(self._requests.items())
                ),
                *_head("request_seconds", "histogram", "Time from the request to the end of the answer, by route."),
            ]
            for route, histogram in sorted(self._seconds.items()):
                lines += histogram.lines("dragoman_request_seconds", {"route": route})
            lines += [
                *_head("batch_size", "histogram", "Texts decoded together."),
                *self._batches.lines("dragoman_batch_size", {}),
                *_head("decode_seconds", "histogram", "Time of decoding a batch."),
                *self._decode.lines("dragoman_decode_seconds", {}),
                *_head("tokens_total", "counter", "Tokens of the models, read (in) and written (out), end tokens included."),
                *(f"dragoman_tokens_total{_labels({'dir': way})} {many}" for way, many in self._tokens.items()),
            ]
        lines += [
            *_head("queue_depth", "gauge", "Texts that wait."),
            f"dragoman_queue_depth {waiting}",
            *_head("inflight", "gauge", "Requests being answered."),
            f"dragoman_inflight {self.inflight}",
            *_head("model_info", "gauge", "The models that are loaded."),
            *(f"dragoman_model_info{_labels({'run': run, 'step': '' if step is None else step})} 1" for run, step in models),
        ]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, sentence: str) -> tuple[str, str]:
    return f"# HELP dragoman_{name} {sentence}", f"# TYPE dragoman_{name} {kind}"


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
