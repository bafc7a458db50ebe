"""How watchdogs talk: each with a few neighbours, who pass on what they hear.

News (what a rank does now) travel with the heartbeats, and only the latest count; messages (a rank is lost, the run
ends) travel at once and reach everybody over any way that is left.
"""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from mpitrain.cluster.peers import is_news

Message = list[Any]
_CHUNK, _LONGEST_LINE = 1 << 16, 1 << 24  # bytes


def neighbours(leaders: tuple[int, ...], rank: int) -> set[int]:
    """The ranks that ``rank`` talks with: all of its node if it is one of the node's two lowest, else those two; and
    the two lowest of each other node if it is one of the two.

    Args:
        leaders: the lowest rank of each rank's node.
    """
    nodes: dict[int, list[int]] = {}
    for other, leader in enumerate(leaders):
        nodes.setdefault(leader, []).append(other)
    hubs = {r for node in nodes.values() for r in node[:2]}
    near = set(nodes[leaders[rank]])
    found = (near | hubs) if rank in hubs else (near & hubs)
    return found - {rank}


class Gossip:
    """This rank's end of the talk; everything runs on the thread that calls :meth:`listen`.

    Args:
        heard: told each message, once, and who brought it.
        news: told each record; returns whether it was new.
        ended: told the rank whose socket has ended.
    """

    def __init__(
        self, heard: Callable[[Message], None], news: Callable[[Message], bool], ended: Callable[[int], None]
    ) -> None:
        self._heard, self._news, self._ended = heard, news, ended
        self._links: dict[int, _Link] = {}
        self._seen: set[tuple[Any, Any]] = set()
        self._selector = selectors.DefaultSelector()

    def watch(self, other: socket.socket, ready: Callable[[], None]) -> None:
        """Call ``ready`` from :meth:`listen` whenever ``other`` can be read."""
        self._selector.register(other, selectors.EVENT_READ, ready)

    def connect(self, links: Mapping[int, socket.socket]) -> None:
        """Talk over these sockets, by rank."""
        for rank, link in links.items():
            self._links[rank] = _Link(link)
            self._selector.register(link, selectors.EVENT_READ, rank)

    def listen(self, seconds: float) -> None:
        """Take in what comes within ``seconds``; returns after the first."""
        for key, _ in self._selector.select(seconds):
            if callable(key.data):
                key.data()
            elif key.data in self._links:
                self._read(key.data)

    def tell(self, message: Message) -> None:
        """Let everybody know: (kind, about, ...); the first of its kind about the same counts."""
        if (key := (message[0], message[1])) not in self._seen:
            self._seen.add(key)
            for link in self._links.values():
                link.send(message)

    def beat(self, record: Message) -> None:
        """Tell the neighbours this rank's record, and what is new of the others."""
        for link in self._links.values():
            link.fresh[record[0]] = record
            link.send_fresh()

    def flush(self, seconds: float = 0.0) -> None:
        """Send what is left, waiting so long at most for each neighbour."""
        for link in self._links.values():
            link.socket.settimeout(seconds)
            link.flush()

    def close(self) -> None:
        """Hang up."""
        for link in self._links.values():
            link.socket.close()
        self._selector.close()

    def _read(self, rank: int) -> None:
        link = self._links[rank]
        for message in link.read():
            if message[0] == "news":
                for record in message[1:]:
                    if is_news(record) and self._news(record):
                        self._pass_on(record, rank)
            elif (message[0], message[1]) not in self._seen:
                self.tell(message)
                self._heard(message)
        if link.ended:
            self._selector.unregister(link.socket)
            link.socket.close()
            del self._links[rank]
            self._ended(rank)

    def _pass_on(self, record: Message, but: int) -> None:
        for rank, link in self._links.items():
            if rank not in (but, record[0]):
                link.fresh[record[0]] = record


class _Link:
    """A socket to one neighbour: lines of JSON, and never a wait."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self.socket = link
        self.ended = False
        self.fresh: dict[int, list[Any]] = {}
        """News not yet passed on; of a neighbour that does not listen only the latest are kept."""
        self._unread = b""
        self._unsent = b""

    def read(self) -> list[list[Any]]:
        """The messages that have come; what is none is passed over."""
        try:
            chunk = self.socket.recv(_CHUNK)
            self.ended = not chunk
        except BlockingIOError:
            return []
        except OSError:
            self.ended = True
            return []
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        if len(self._unread) > _LONGEST_LINE:
            self._unread = b""
        return [message for line in lines if (message := _parse(line)) is not None]

    def send(self, message: list[Any]) -> None:
        """Send as much as goes at once, the rest with what follows."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def send_fresh(self) -> None:
        """Pass the news on, unless older ones are still under way."""
        self.flush()
        if self.fresh and not self._unsent:
            self.send(["news", *self.fresh.values()])
            self.fresh.clear()

    def flush(self) -> None:
        """Send what is left, as far as it goes."""
        with suppress(OSError):
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]


def _parse(line: bytes) -> Message | None:
    with suppress(ValueError, RecursionError):
        match message := json.loads(line):
            case ["news", *_] | [str(), int() | str(), *_]:
                return list(message)
    return None
