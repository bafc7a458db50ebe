"""Tickets, messages and shards: the arithmetic beneath the exchange."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpitrain.errors import InputError
from mpitrain.exchange.base import Totals
from mpitrain.exchange.servers.messages import Action, Answer, Codec, Entry, Held, Over, Push, Ready
from mpitrain.exchange.servers.shards import balance, cut
from mpitrain.exchange.tickets import Ticket, TicketBook
from mpitrain.parameters.layout import ALIGNMENT, Layout

SMALL = st.integers(1, 60)


@st.composite
def books(draw: st.DrawFn) -> TicketBook:
    total, updates = draw(st.none() | st.integers(1, 300)), draw(st.none() | st.integers(1, 40))
    assume(total is not None or updates is not None)
    return TicketBook(draw(SMALL), draw(SMALL), total, updates, draw(st.integers(1, 5)))


@given(books())
def test_each_epoch_is_one_pass(book: TicketBook) -> None:
    tickets = list(itertools.islice(book, book.updates * book.per_update))
    assert [t.number for t in tickets] == list(range(len(tickets)))
    assert -(-len(tickets) // book.per_update) == book.updates
    assert book.tickets in (None, len(list(itertools.islice(book, 1000))))
    assert all(0 < t.size <= book.size for t in tickets)
    for epoch, group in itertools.groupby(tickets, key=lambda t: t.epoch):
        places = [i for t in group for i in range(t.first, t.first + t.size)]
        assert places == list(range(len(places)))
        assert len(places) == book.samples or epoch == tickets[-1].epoch
    if book.total_samples is not None:
        assert sum(t.size for t in book) == book.total_samples


@given(books(), st.data())
def test_samples_and_updates_count_what_iterating_gives(book: TicketBook, data: st.DataObject) -> None:
    tickets = iter(book)
    updates = (list(itertools.islice(tickets, book.per_update)) for _ in range(book.updates))
    sizes = [sum(t.size for t in update) for update in updates]
    after = [0, *itertools.accumulate(sizes)]
    assert [book.samples_after(k) for k in range(book.updates + 1)] == after
    samples = data.draw(st.integers(0, after[-1]))
    assert book.updates_for(samples) == next(k for k, n in enumerate(after) if n >= samples)
    assert book.updates_for(10 * after[-1] + 10) == book.updates


@given(books(), st.data())
def test_cuts_ascend_to_the_last_update(book: TicketBook, data: st.DataObject) -> None:
    every, unit = data.draw(
        st.sampled_from(
            [(None, "steps"), (1, "steps"), (7, "steps"), (1.0, "epochs"), (0.3, "epochs"), (1e-9, "epochs")]
        )
    )
    cuts = book.cuts(every, unit)
    assert list(cuts) == sorted(set(cuts))
    assert cuts[0] > 0
    assert cuts[-1] == book.updates
    if unit == "steps" and every:
        assert cuts[:-1] == tuple(range(every, book.updates, every))
    if (every, unit) == (1.0, "epochs"):
        ends = range(book.per_epoch, book.updates * book.per_update, book.per_epoch)
        ceilings = dict.fromkeys(-(-end // book.per_update) for end in ends)
        assert cuts[:-1] == tuple(c for c in ceilings if c < book.updates)
    if every == 1e-9:
        assert cuts == tuple(range(1, book.updates + 1))


def test_a_tenth_of_an_epoch_is_not_rounded_up() -> None:
    assert TicketBook(5500, 50, 5500).cuts(0.1, "epochs") == tuple(range(11, 111, 11))


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 9))
def test_parts_cover_a_ticket_evenly(first: int, size: int, parts: int) -> None:
    ticket = Ticket(3, 1, first, size)
    cuts = [ticket.part(i, parts) for i in range(parts)]
    assert [i for p in cuts for i in range(p.first, p.first + p.size)] == list(range(first, first + size))
    assert max(p.size for p in cuts) - min(p.size for p in cuts) <= 1
    assert {(p.number, p.epoch) for p in cuts} == {(3, 1)}


COUNT = st.integers(0, 2**53)
RANK = st.integers(0, 5000)
NUMBER = st.floats(allow_nan=False)
SUMS, STATE, WORKERS = 4, 3, 4
TICKET = st.builds(Ticket, COUNT, COUNT, COUNT, COUNT)
PAIRS = st.lists(st.tuples(RANK, COUNT), max_size=WORKERS)
VARIABLES = 4
ROWS = st.lists(st.tuples(COUNT, COUNT), max_size=VARIABLES)
CULPRIT = st.tuples(st.integers(-1, 5000), st.integers(-1, 2**53))


def vector(size: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(NUMBER, min_size=size, max_size=size).map(np.array)


DROPPED = st.lists(COUNT, min_size=WORKERS, max_size=WORKERS).map(np.array)
TOTALS = st.builds(Totals, vector(SUMS), COUNT, COUNT, NUMBER, COUNT, COUNT, NUMBER, DROPPED)
EMPTY = st.builds(np.empty, st.just(0))
HEAD = (COUNT, st.sampled_from(Action), COUNT, st.booleans(), st.integers(-1, 5000), NUMBER)
MESSAGES = st.one_of(
    st.builds(Ready, RANK, st.booleans()),
    st.builds(Push, RANK, COUNT, COUNT, NUMBER, *[st.booleans()] * 3, EMPTY | vector(SUMS + STATE), ROWS),
    st.builds(Over),
    st.builds(Held, RANK, RANK, COUNT, st.booleans()),
    st.builds(
        Entry,
        COUNT,
        st.sampled_from(Action),
        NUMBER,
        st.booleans(),
        PAIRS,
        PAIRS,
        st.lists(st.tuples(RANK, st.none() | TICKET), max_size=WORKERS),
        CULPRIT,
    ),
    st.builds(Answer, *HEAD, st.none(), st.none(), EMPTY, CULPRIT),
    st.builds(Answer, *HEAD, st.none() | TICKET, TOTALS, EMPTY | vector(STATE), CULPRIT),
)


def plainly(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        return type(value).__name__, {name: plainly(item) for name, item in vars(value).items()}
    return value


@given(MESSAGES)
def test_messages_travel_unchanged(message: object) -> None:
    codec = Codec(WORKERS, SUMS, STATE, VARIABLES)
    sent = codec.encode(message)  # type: ignore[arg-type]
    assert sent.dtype == np.float64
    assert sent.size <= codec.length
    received = np.full(codec.length, np.nan)
    received[: sent.size] = sent
    again = codec.decode(received[: sent.size])
    received[:] = -1
    assert plainly(again) == plainly(message), "and the buffer may be used again"


LAYOUTS = st.lists(st.integers(1, 500), min_size=1, max_size=6).map(
    lambda sizes: Layout.of([(str(i), (size,)) for i, size in enumerate(sizes)])
)


@given(LAYOUTS, st.integers(1, 6), st.booleans())
def test_shards_cover_the_vector(layout: Layout, servers: int, elementwise: bool) -> None:
    try:
        shards = cut(layout, servers, elementwise)
    except InputError:
        assert servers > (layout.nbytes // ALIGNMENT if elementwise else 1)
        return
    assert len(shards) == servers
    assert [s.start for s in shards] == [0, *(s.stop for s in shards[:-1])]
    assert shards[-1].stop == layout.size
    assert all(s.start * layout.dtype.itemsize % ALIGNMENT == 0 for s in shards)
    assert all(s.stop > s.start for s in shards)
    if elementwise:
        sizes = [s.stop - s.start for s in shards]
        assert max(sizes) - min(sizes) <= ALIGNMENT // layout.dtype.itemsize
    else:
        assert {s.start for s in shards} <= {entry.offset for entry in layout.entries}


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_variables_are_not_cut_where_the_optimizer_needs_them_whole(servers: int) -> None:
    layout = Layout.of([("a", (64,)), ("b", (640,)), ("c", (64,)), ("d", (64,))])
    shards = cut(layout, servers, False)
    assert {s.start for s in shards} <= {0, 64, 704, 768}
    assert math.fsum(s.stop - s.start for s in shards) == layout.size


def test_the_balance_of_the_shards_is_told() -> None:
    layout = Layout.of([("a", (64,)), ("b", (640,)), ("c", (64,)), ("d", (64,))])
    assert balance(cut(layout, 2, True), layout, True) == (
        "2 shards of 1,664, 1,664 bytes, cut anywhere; the largest is 0.0 % over an equal share"
    )
    assert balance(cut(layout, 2, False), layout, False) == (
        "2 shards of 2,816, 512 bytes, cut between variables, as this optimizer needs it; the largest is 69.2 % over "
        "an equal share"
    )
