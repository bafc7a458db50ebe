"""Signals that are noticed while the main thread is busy, and the last things that a process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from mpitrain.cluster import leaving
from mpitrain.cluster.launcher import Launch
from mpitrain.cluster.peers import Peer
from tests.support.mpi import Ended, environment, run

PRELUDE = """
import os, signal, socket, sys, time
from mpitrain.cluster.signals import NOTICED, notice
here, there = socket.socketpair()
here.setblocking(False)
busy = True
"""


def program(text: str) -> Ended:
    return run([sys.executable, "-c", PRELUDE + textwrap.dedent(text)], 60, environment())


def test_signals_are_noticed_in_a_run() -> None:
    ended = program("""
        notice(here, idle=lambda: not busy)
        for number in NOTICED:
            os.kill(os.getpid(), number)
        print([*there.recv(100)] == [*NOTICED])
    """).check()
    assert ended.out == "True\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_outside_of_a_run_a_signal_does_what_it_did_before(number: int) -> None:
    ended = program(f"""
        notice(here, idle=lambda: True)
        os.kill(os.getpid(), {int(number)})
        time.sleep(30)
    """)
    assert ended.code == -number


def test_outside_of_a_run_ctrl_c_raises_keyboard_interrupt() -> None:
    ended = program("""
        notice(here, idle=lambda: True)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        except KeyboardInterrupt:
            print("interrupted")
    """).check()
    assert ended.out == "interrupted\n"


def test_what_the_user_has_set_is_left_alone() -> None:
    ended = program("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        mine = lambda number, frame: print("mine")
        signal.signal(signal.SIGUSR1, mine)
        notice(here, idle=lambda: False)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGUSR1) is mine
        print([*there.recv(100)] == [signal.SIGUSR1])
    """).check()
    assert ended.out == "mine\nTrue\n"


def test_from_another_thread_nothing_is_set() -> None:
    ended = program("""
        import threading
        thread = threading.Thread(target=notice, args=(here, lambda: False))
        thread.start()
        thread.join()
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    """).check()
    assert ended.out == "True\n"


@pytest.fixture
def sleeper() -> psutil.Process:
    process = subprocess.Popen(["sleep", "100"])
    threading.Thread(target=process.wait, daemon=True).start()
    return psutil.Process(process.pid)


def peer(pid: int, born: float) -> Peer:
    return Peer(1, "here", 0, pid, born, 0.0, 0.0)


def test_a_stuck_rank_is_killed_but_not_a_later_process_of_its_number(sleeper: psutil.Process) -> None:
    leaving._kill(peer(sleeper.pid, sleeper.create_time() - 100))
    assert sleeper.is_running()
    leaving._kill(peer(sleeper.pid, sleeper.create_time()))
    sleeper.wait(10)
    leaving._kill(peer(sleeper.pid, sleeper.create_time()))


def test_the_birth_of_a_process_is_what_others_see_of_it() -> None:
    assert leaving.own_birth() == psutil.Process(os.getpid()).create_time()


def test_without_a_launcher_above_nobody_is_ended() -> None:
    before = {child.pid for child in psutil.Process().children()}
    leaving.end_launcher()
    assert {child.pid for child in psutil.Process().children()} == before


@pytest.mark.parametrize("kind", ["none", "openmpi"])
def test_whoever_leaves_ends_stuck_ranks_where_no_launcher_does(
    kind: str, sleeper: psutil.Process, tmp_path: Path
) -> None:
    ended = run(
        [
            sys.executable,
            "-c",
            "from mpitrain.cluster import leaving\n"
            "from mpitrain.cluster.launcher import Launch\n"
            "from mpitrain.cluster.peers import Peer\n"
            f"stuck = Peer(1, 'here', 0, {sleeper.pid}, {sleeper.create_time()!r}, 0.0, 0.0)\n"
            f"leaving.leave(72, Launch({kind!r}, 2, 0), True, [stuck])",
        ],
        60,
        environment(),
        tmp_path,
    )
    assert (ended.code, ended.out, ended.err) == (72, "", "")
    assert Launch(kind, 2, 0).under_mpirun == (kind == "openmpi")
    if kind == "none":
        sleeper.wait(10)
    else:
        assert sleeper.is_running()
        sleeper.kill()
