"""Host files in the two forms, Open MPI's ``host slots=N`` and MPICH's ``host:N``, read strictly.

The launchers themselves read them loosely: an unknown key or ``slots=0`` is passed over, a host may come twice, and
what one refuses the other takes for something else. Here every character has a meaning or is refused with its place.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitrain.errors import InputError

OPENMPI, MPICH = "openmpi", "mpich"
FORMS = (OPENMPI, MPICH)
NAMES = {OPENMPI: "Open MPI", MPICH: "MPICH"}
MAX_SLOTS = 2**20
"""More on one host is a slip of the keyboard."""

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_WORD = re.compile(r"[^\s#]+")


@dataclass(frozen=True)
class Entry:
    """One host of a file.

    Args:
        host: its name or IPv4 address.
        slots: how many ranks it takes, or None where the file leaves it to the launcher.
        line: where it stands, from 1.
        column: from 1.
        comments: whole lines, with their #, that stand above it; empty ones too.
    """

    host: str
    slots: int | None
    line: int = 0
    column: int = 1
    comments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hostfile:
    """The hosts that ranks fill from the top.

    Args:
        entries: at least one, none of them twice.
        form: ``openmpi`` or ``mpich``; None where it says nothing that tells them apart.
        name: of the file, for people.
        ending: comments below the last host.
    """

    entries: tuple[Entry, ...]
    form: str | None = None
    name: str = "hosts"
    ending: tuple[str, ...] = ()

    @property
    def slots(self) -> int | None:
        """Ranks that all hosts take together, or None where the file leaves that to the launcher."""
        counts = [entry.slots for entry in self.entries]
        return None if None in counts else sum(c for c in counts if c is not None)

    def fault(self, entry: Entry, reason: str) -> InputError:
        """An error about a host, with its place."""
        return InputError(f"{self.name}:{entry.line}:{entry.column}: {reason}")

    def ranks(self) -> Iterator[tuple[Entry, range]]:
        """Which ranks each host gets, for a file whose slots are all known and full."""
        first = 0
        for entry in self.entries:
            assert entry.slots is not None
            yield entry, range(first, first + entry.slots)
            first += entry.slots

    def text(self, form: str) -> str:
        """The file in a form, with its comments.

        Raises:
            InputError: a host without a number of slots: it means all its cores to Open MPI, and one rank to MPICH.
        """
        lines: list[str] = []
        for entry in self.entries:
            slots = entry.slots
            if slots is None and self.form == MPICH:
                slots = 1
            if slots is None:
                host = entry.host
                raise self.fault(
                    entry,
                    f"{host} has no number of slots, which Open MPI takes for all its cores and MPICH for one rank: "
                    f"write it down, as in `{host} slots=2`, or `{host}:2` for MPICH",
                )
            lines += [*entry.comments, f"{entry.host} slots={slots}" if form == OPENMPI else f"{entry.host}:{slots}"]
        return "\n".join([*lines, *self.ending, ""])


def read(path: Path, form: str | None = None, *, windows: bool = False) -> Hostfile:
    """Read a host file.

    Args:
        path: of the file.
        form: that it must have; None takes the one that it shows first.
        windows: whether to take Windows line ends too, to convert them.

    Raises:
        InputError: the file cannot be read, or the first thing that is wrong in it, as ``FILE:LINE:COLUMN: ...``.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the host file {path} cannot be read ({error.strerror}): check the path") from None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise InputError(
            f"{path}:{line}:{column}: this is not UTF-8 text: a host file holds host names, in ASCII"
        ) from None
    return parse(text.replace("\r\n", "\n") if windows else text, str(path), form)


def parse(text: str, name: str = "hosts", form: str | None = None) -> Hostfile:
    """Like :func:`read`, of a text."""
    return _Parser(name, form).parse(text)


class _Parser:
    """Reads line by line; ``form`` becomes known with the first host that shows it."""

    def __init__(self, name: str, form: str | None) -> None:
        self.name, self.form = name, form
        self.asked = form is not None
        self.line = 0

    def parse(self, text: str) -> Hostfile:
        entries: list[Entry] = []
        comments: list[str] = []
        lines: dict[str, int] = {}
        for self.line, line in enumerate(text.split("\n"), 1):
            if self.line == 1 and line.startswith("\ufeff"):
                raise self._fault(0, "the file begins with a byte order mark, which no MPI reads: save it without")
            if "\r" in line:
                raise self._fault(
                    line.index("\r"),
                    "the line ends as on Windows (CRLF), where Open MPI stops: "
                    f"`mpitrain hostfile convert {self.name} --to openmpi` or `--to mpich` writes it anew",
                )
            code, mark, comment = line.partition("#")
            if not code.strip():
                comments.append(line.strip())
                continue
            entry = self._entry(code)
            if mark and self.form == MPICH:
                raise self._fault(len(code), "MPICH refuses a comment behind a host: put it on a line of its own")
            if entry.host in lines:
                raise self._fault(
                    entry.column - 1,
                    f"{entry.host} stands on line {lines[entry.host]} already, and the slots of both would be added: "
                    "name each host once",
                )
            lines[entry.host] = self.line
            above = (*comments, *([mark + comment.rstrip()] if mark else []))
            entries.append(Entry(entry.host, entry.slots, self.line, entry.column, above))
            comments = []
        if not entries:
            raise InputError(f"{self.name}:1:1: no host is named in the file: write one a line, as in `node1 slots=2`")
        # What follows the last line end is no line.
        return Hostfile(tuple(entries), self.form, self.name, tuple(comments[:-1] if text.endswith("\n") else comments))

    def _entry(self, code: str) -> Entry:
        words = [(word[0], word.start()) for word in _WORD.finditer(code)]
        (first, at), rest = words[0], words[1:]
        host, colon, count = first.partition(":")
        if not host:
            raise self._fault(at, "a host's name is missing before the colon: write `host:2`")
        if not (match := _HOST.match(host)) or match.end() < len(host):
            wrong = match.end() if match else 0
            hint = "name each host on a line of its own" if set("[,") & set(host) else "it has letters, digits, . and -"
            raise self._fault(at + wrong, f"{host[wrong : wrong + 1]!r} is not possible in a host's name: {hint}")
        slots = None
        if colon:
            self._shows(MPICH, at + len(host), f"{host}:{count}")
            slots = self._count(count, at + len(host) + 1, f"{host}:2")
        if rest:
            slots = self._keys(host, code, rest)
        return Entry(host, slots, self.line, at + 1)

    def _keys(self, host: str, code: str, words: Sequence[tuple[str, int]]) -> int:
        """``slots=N``, the only key that has a meaning for both MPIs."""
        _, at = words[0]
        # Open MPI takes blanks around the sign.
        match = re.compile(r"([^\s=]+)(\s*=\s*)?(\S+)?").match(code, at)
        assert match is not None
        key, sign, value = match.groups()
        if key != "slots":
            near = difflib.get_close_matches(key, ["slots"], 1, 0.5)
            hint = "did you mean slots?" if near else "only slots=N has a meaning here"
            shown = key + ("=" if sign else "")
            raise self._fault(at, f"{shown!r} is no key of a host file, and Open MPI may pass over it: {hint}")
        self._shows(OPENMPI, at, code[at:].strip())
        if not sign:
            raise self._fault(match.end(1), f"slots has no =N behind it: write it as in `{host} slots=2`")
        slots = self._count(value or "", match.end(2), f"{host} slots=2")
        if code[match.end() :].strip():
            extra = match.end() + len(code[match.end() :]) - len(code[match.end() :].lstrip())
            raise self._fault(
                extra, f"{code[extra:].split()[0]!r} is no key of a host file: only slots=N has a meaning here"
            )
        return slots

    def _count(self, text: str, at: int, example: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 0 < int(text) <= MAX_SLOTS:
            said = f"{text!r} is not a number of ranks" if text else "the number of ranks is missing"
            raise self._fault(at, f"{said}: write a whole number from 1 on, as in `{example}`")
        return int(text)

    def _shows(self, form: str, at: int, what: str) -> None:
        """What is written at a place belongs to one of the forms."""
        if self.form is None:
            self.form = form
        elif self.form != form:
            wanted = f"{NAMES[self.form]}'s" + ("" if self.asked else ", which the lines above have")
            raise self._fault(
                at,
                f"`{what}` is {NAMES[form]}'s form, not {wanted}: "
                f"write `{'host slots=N' if self.form == OPENMPI else 'host:N'}`, or convert the file",
            )

    def _fault(self, at: int, reason: str) -> InputError:
        return InputError(f"{self.name}:{self.line}:{at + 1}: {reason}")
