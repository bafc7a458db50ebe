"""What a rank did at its very end can be read by its neighbours."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

from mpitrain.cluster import last_words
from mpitrain.cluster.waiting import now, waiting
from tests.support.mpi import environment

CHILD = """
import os, signal, socket, sys
from mpitrain.cluster import last_words
from mpitrain.cluster.waiting import Activity
link = socket.socket(fileno=int(sys.argv[1]))
me = Activity()
me.page, _ = last_words.exchange({0: link}, [0], 20)
me.work("computing a gradient", 6)
me.work("computing a gradient", 2**40)
link.send(b"+")
link.recv(1)
"""


def test_they_outlive_a_killed_process() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment()
        )
        own, pages = last_words.exchange({1: ours}, [1], 20)
        assert ours.recv(1) == b"+"
        child.send_signal(signal.SIGKILL)
        assert child.wait(20) == -signal.SIGKILL
    assert pages[1].read() == ("computing a gradient", 2**40)
    assert own.read() == ("", 0)


def test_every_note_of_this_process_is_written() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    before = now.page, now.operation, now.step
    with ours, theirs:
        descriptor = os.memfd_create("test")
        socket.send_fds(theirs, [b"\0"], [descriptor])
        os.ftruncate(descriptor, 4096)
        page, _ = last_words.exchange({1: ours}, [1], 20)
        os.close(descriptor)
        try:
            now.page = page
            now.work("serving", 4)
            with waiting("waiting for pushes", 5):
                assert page.read() == ("waiting for pushes", 5)
            assert page.read() == ("serving", 5)
            now.work("ä" * 100)
            assert page.read()[0].startswith("ä" * 31)
        finally:
            now.page, now.operation, now.step = before


def test_a_neighbour_that_is_gone_leaves_none() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    theirs.close()
    with ours:
        assert last_words.exchange({1: ours}, [1], 20)[1] == {}
