"""The messages between workers and servers, and how each travels: as one small float64 vector.

Parameters and gradients travel beside them as plain slices. All integers here stay far below 2**53: float64 holds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

import numpy as np

from mpitrain.exchange.base import Totals
from mpitrain.exchange.tickets import Ticket


class Action(IntEnum):
    """What a log entry asks of everybody, beyond the gradients that it applies."""

    RUN = 0
    CUT = 1
    END = 2
    FAIL = 3
    STOP = 4
    """END before its time, because a rank was asked to stop."""


@dataclass
class Ready:
    """Worker to server 0: I have the parameters I need; give me a ticket."""

    worker: int
    stop: bool = False
    """Whether the sender was asked to end the run early."""


@dataclass
class Push:
    """Worker to every server: my gradient for a ticket; the slice for that server travels beside it.

    Args:
        worker: rank that computed it.
        ticket: number of the ticket.
        version: of the parameters it was computed from.
        weight: what its mean was divided by; zero says that there were no samples, and no slice travels.
        finite: False says that it held NaN or infinity, and no slice travels.
        late: True says that its step was over when it was ready, and no slice travels.
        stop: whether the sender was asked to end the run early.
        tail: sums and float state; to server 0 only.
        rows: (index of a variable, number of rows) where only some rows of its gradient travel, after all else of the
            slice: their numbers, then their values.
        lane: which of the worker's buffers its gradient fills; they take turns.
    """

    worker: int
    ticket: int
    version: int
    weight: float
    finite: bool
    late: bool = False
    stop: bool = False
    tail: np.ndarray = field(default_factory=lambda: np.empty(0))
    rows: list[tuple[int, int]] = field(default_factory=list)
    lane: int = 0

    @property
    def carries_gradient(self) -> bool:
        """Whether a slice travels beside it."""
        return self.finite and self.weight > 0 and not self.late


@dataclass
class Held:
    """Server to server 0: this push has arrived here whole."""

    server: int
    worker: int
    ticket: int
    stop: bool = False
    """Whether the sender was asked to end the run early."""


@dataclass
class Over:
    """Server 0 to a worker that still computes: its step is over, so its gradient need not travel."""


@dataclass
class Entry:
    """Server 0 to the other servers: one entry of the log.

    Args:
        number: entries count from 1.
        action: what happens after it.
        rate: learning rate of its update.
        step: whether the gradients taken up since the last update, these included, make the next version.
        applied: (worker, ticket) of the gradients that are taken up, in the order in which they are added.
        dropped: (worker, ticket) of the pushes that are forgotten.
        answered: (worker, next ticket or None) of the workers that hear of it.
        culprit: (worker, step) that a FAIL is about.
    """

    number: int
    action: Action
    rate: float = 0.0
    step: bool = False
    applied: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)
    answered: list[tuple[int, Ticket | None]] = field(default_factory=list)
    culprit: tuple[int, int] = (-1, -1)


@dataclass
class Answer:
    """Server to worker: the verdict on its push, and where the log stands.

    Args:
        number: of the log entry that it follows from.
        action: of that entry.
        version: of the parameters.
        carries_parameters: whether this server's slice travels beside it; not where the worker has that version.
        slot: where in the node's memory the parameters are; -1 where they travel.
        update_seconds: what this server spent on the update.
        ticket: the next one; from server 0 only.
        totals: of all that was applied; from server 0 only.
        state: the agreed float state; from server 0 only, empty where it is not agreed on.
        culprit: (worker, step) that a FAIL is about.
    """

    number: int
    action: Action
    version: int
    carries_parameters: bool
    slot: int = -1
    update_seconds: float = 0.0
    ticket: Ticket | None = None
    totals: Totals | None = None
    state: np.ndarray = field(default_factory=lambda: np.empty(0))
    culprit: tuple[int, int] = (-1, -1)


Message = Ready | Push | Held | Over | Entry | Answer


class Codec:
    """Messages to float64 vectors and back.

    Args:
        workers: number of workers.
        sums: length of ``StepResult.sums``.
        state: length of the float state.
        variables: of the model: of so many some rows alone may travel.
        depth: tickets that a worker may hold at once.
    """

    _READY, _PUSH, _HELD, _OVER, _ENTRY, _ANSWER = range(6)
    _ANSWER_HEAD: ClassVar[int] = 14

    def __init__(self, workers: int, sums: int, state: int, variables: int = 0, depth: int = 1) -> None:
        self._totals = Totals.HEAD + workers + sums
        self._workers = workers
        push = 10 + 2 * variables + sums + state
        self.length = max(push, 9 + (2 + 2 + 5) * depth * workers, self._ANSWER_HEAD + self._totals + state)

    def encode(self, message: Message) -> np.ndarray:
        """A new float64 vector of at most ``length`` elements."""
        match message:
            case Ready(worker, stop):
                return np.array([self._READY, worker, stop], np.float64)
            case Push(worker, ticket, version, weight, finite, late, stop, tail, rows, lane):
                head = [self._PUSH, worker, ticket, version, weight, finite, late, stop, lane, len(rows)]
                return np.concatenate((head, *rows, tail))
            case Held(server, worker, ticket, stop):
                return np.array([self._HELD, server, worker, ticket, stop], np.float64)
            case Over():
                return np.array([self._OVER], np.float64)
            case Entry():
                return self._encode_entry(message)
            case Answer():
                return self._encode_answer(message)

    def decode(self, vector: np.ndarray) -> Message:
        """What was encoded; tails are copies, so that ``vector`` may be used again."""
        kind = int(vector[0])
        if kind == self._READY:
            return Ready(int(vector[1]), bool(vector[2]))
        if kind == self._PUSH:
            worker, ticket, version = (int(x) for x in vector[1:4])
            weight, finite, late, stop, lane, count = vector[4:10].tolist()
            split = 10 + 2 * int(count)
            rows = [(int(index), int(number)) for index, number in vector[10:split].reshape(-1, 2)]
            flags = bool(finite), bool(late), bool(stop)
            return Push(worker, ticket, version, weight, *flags, vector[split:].copy(), rows, int(lane))
        if kind == self._HELD:
            server, worker, ticket, stop = vector[1:5].astype(np.int64).tolist()
            return Held(server, worker, ticket, bool(stop))
        if kind == self._OVER:
            return Over()
        return self._decode_entry(vector) if kind == self._ENTRY else self._decode_answer(vector)

    def _encode_entry(self, entry: Entry) -> np.ndarray:
        values: list[float] = [self._ENTRY, entry.number, entry.action, entry.rate]
        values += [entry.step, len(entry.applied), len(entry.dropped), *entry.culprit]
        for pair in entry.applied + entry.dropped:
            values += pair
        for worker, ticket in entry.answered:
            values += [worker, *(ticket or _NO_TICKET)]
        return np.array(values, np.float64)

    def _decode_entry(self, vector: np.ndarray) -> Entry:
        applied, dropped = int(vector[5]), int(vector[6])
        rest = vector[9:].astype(np.int64).tolist()
        pairs = [(rest[i], rest[i + 1]) for i in range(0, 2 * (applied + dropped), 2)]
        rest = rest[2 * (applied + dropped) :]
        answered = [(rest[i], _ticket(rest[i + 1 : i + 5])) for i in range(0, len(rest), 5)]
        action = Action(int(vector[2]))
        culprit = (int(vector[7]), int(vector[8]))
        rate, step = float(vector[3]), bool(vector[4])
        return Entry(int(vector[1]), action, rate, step, pairs[:applied], pairs[applied:], answered, culprit)

    def _encode_answer(self, answer: Answer) -> np.ndarray:
        head = [
            self._ANSWER,
            answer.number,
            answer.action,
            answer.version,
            answer.carries_parameters,
            answer.slot,
            answer.update_seconds,
            answer.totals is not None,
            *(answer.ticket or _NO_TICKET),
            *answer.culprit,
        ]
        if answer.totals is None:
            return np.array(head, np.float64)
        vector = np.empty(len(head) + self._totals + answer.state.size)
        vector[: len(head)] = head
        tail = vector[len(head) :]
        answer.totals.encode(tail[: self._totals])
        tail[self._totals :] = answer.state
        return vector

    def _decode_answer(self, vector: np.ndarray) -> Answer:
        _, number, action, version, carries, slot, seconds, with_totals, *rest = vector[: self._ANSWER_HEAD].tolist()
        split = self._ANSWER_HEAD + self._totals
        return Answer(
            int(number),
            Action(int(action)),
            int(version),
            bool(carries),
            int(slot),
            seconds,
            _ticket(rest[:4]),
            Totals.decode(vector[self._ANSWER_HEAD : split], self._workers) if with_totals else None,
            vector[split:].copy(),
            (int(rest[4]), int(rest[5])),
        )


_NO_TICKET = (-1, -1, -1, -1)


def _ticket(values: list[float]) -> Ticket | None:
    return None if values[0] < 0 else Ticket(*(int(v) for v in values))
