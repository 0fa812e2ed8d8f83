"""Who is next: work that waits, taken by turns from clients, and from the requests of each client."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

_SHARE = 4  # while others wait a request has at most one in so many places of a batch


@dataclass(eq=False)
class Item:
    """A piece of work: what ``key`` is equal may be done together; None is done alone. ``size`` counts towards a batch's budget.

    ``done`` is told the result or the exception. ``gone`` says whether nobody waits for it any more.
    """

    key: Hashable
    work: Any
    size: int
    done: Callable[[Any], None]
    gone: Callable[[], bool]


@dataclass
class FairQueue:
    """Items by client and request. Not safe between threads: its owner holds a lock."""

    clients: OrderedDict[str, OrderedDict[int, deque[Item]]] = field(default_factory=OrderedDict)
    waiting: int = 0

    def put(self, client: str, request: int, items: Iterable[Item]) -> None:
        """Adds the items of a request, behind what it has here already."""
        line = self.clients.setdefault(client, OrderedDict()).setdefault(request, deque())
        before = len(line)
        line.extend(items)
        self.waiting += len(line) - before

    @property
    def requests(self) -> int:
        """How many have something here."""
        return sum(map(len, self.clients.values()))

    @property
    def next_is_alone(self) -> bool:
        """Whether what is next is done alone, so that no company is to be waited for."""
        requests = next(iter(self.clients.values()), None)
        return requests is not None and next(iter(requests.values()))[0].key is None

    def take(self, most: int, budget: int, *, put_off: Callable[[Hashable], bool] = lambda key: False) -> list[Item]:
        """The next items to do together: at most so many, of a size within the budget together, but at least one if any waits whose key is
        not put off.

        Clients take turns, and so do the requests of one. While several requests wait none has more than a quarter of the places, so that
        a long one does not make the short ones wait for its whole batch.
        """
        self._drop_gone()
        taken: list[Item] = []
        counts: dict[int, int] = {}
        size = 0
        share = most if self.requests == 1 else max(most // _SHARE, 1)
        misses = 0
        while self.clients and len(taken) < most and misses < len(self.clients):
            client, requests = next(iter(self.clients.items()))
            found = self._next_of(requests, taken, counts, share, budget - size, put_off)
            self.clients.move_to_end(client)
            if found is None:
                misses += 1
                continue
            misses = 0
            taken.append(found)
            size += found.size
            self.waiting -= 1
            if not requests:
                del self.clients[client]
            if found.key is None:
                break
        return taken

    def _next_of(
        self,
        requests: OrderedDict[int, deque[Item]],
        taken: list[Item],
        counts: dict[int, int],
        share: int,
        room: int,
        put_off: Callable[[Hashable], bool],
    ) -> Item | None:
        """The next item of a client that goes with what is taken, its request put behind the others."""
        for request, line in list(requests.items()):
            head = line[0]
            goes_with = not taken or (head.key is not None and head.key == taken[0].key and head.size <= room)
            fits = goes_with and not put_off(head.key)
            if not fits or counts.get(request, 0) >= share:
                continue
            line.popleft()
            counts[request] = counts.get(request, 0) + 1
            requests.move_to_end(request)
            if not line:
                del requests[request]
            return head
        return None

    def _drop_gone(self) -> None:
        """Takes out the requests that nobody waits for."""
        for client, requests in list(self.clients.items()):
            for request, line in list(requests.items()):
                if line[0].gone():
                    self.waiting -= len(line)
                    del requests[request]
            if not requests:
                del self.clients[client]
