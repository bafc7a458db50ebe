import time

import pytest

from mpitrain.reporting.throughput import Clock, Throughput


class Time:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def pass_(self, seconds):
        self.now += seconds


@pytest.fixture
def source():
    return Time()


@pytest.fixture
def clock(source):
    clock = Clock(source)
    clock.start()
    return clock


def test_the_clock_stands_still_until_it_starts(source):
    clock = Clock(source)
    source.pass_(5)
    assert clock.seconds == 0
    clock.start()
    source.pass_(2)
    clock.start()
    source.pass_(1)
    assert clock.seconds == 3


def test_pauses_do_not_count_and_may_nest(source, clock):
    source.pass_(1)
    with clock.paused():
        source.pass_(10)
        with clock.paused():
            source.pass_(10)
        source.pass_(10)
        assert clock.seconds == 1
    source.pass_(2)
    assert clock.seconds == 3


def test_a_pause_ends_when_the_block_raises(source, clock):
    with pytest.raises(KeyError), clock.paused():
        raise KeyError
    source.pass_(1)
    assert clock.seconds == 1


def test_a_clock_that_stands_still_does_so_after_a_pause(source, clock):
    clock.stop()
    with clock.paused():
        pass
    source.pass_(1)
    assert clock.seconds == 0


def test_the_default_source_moves():
    clock = Clock()
    clock.start()
    time.sleep(0.002)
    assert clock.seconds >= 0.002


def test_the_rate_leaves_out_the_first_steps_and_the_pauses(source, clock):
    throughput = Throughput(clock, skip=10)
    for _ in range(10):
        source.pass_(7)
        throughput.step(100)
        assert throughput.rate is None
    for samples in (300, 100):
        source.pass_(0.5)
        throughput.step(samples)
        with clock.paused():
            source.pass_(100)
    source.pass_(50)  # what follows the last step is no part of it
    assert throughput.rate == 400


def test_laps_count_everything_once(source, clock):
    throughput = Throughput(clock)
    assert throughput.lap() is None
    source.pass_(2)
    throughput.step(100)
    assert throughput.lap() == 50
    assert throughput.lap() is None
    source.pass_(1)
    throughput.step(30)
    source.pass_(1)
    throughput.step(50)
    assert throughput.lap() == 40
