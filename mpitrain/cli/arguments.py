"""Reading arguments: defaults, then a TOML file, then the environment, then the command line."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import cyclopts
from cyclopts import App, CycloptsError, Parameter, UnknownOptionError
from cyclopts.config import Env, Toml
from cyclopts.exceptions import UnusedCliTokensError

from mpitrain.cli.launch import split
from mpitrain.config import RunConfig
from mpitrain.errors import InputError
from mpitrain.pairs import RULES
from mpitrain.reporting.rundir import as_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "MPITRAIN_"
_TYPES: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}
_NAMES: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
_OTHER_VARIABLES = {"CACHE", "CONFIG", "NO_EXCEPTHOOK"}


def whole_numbers(type_: Any, tokens: Sequence[cyclopts.Token]) -> Any:
    """Convert as cyclopts does, but never round: 1.5 is no number of steps.

    Raises:
        ValueError: with a text that cyclopts makes into its message.
    """
    if type_ in (int, int | None):
        text = tokens[0].value
        if not re.fullmatch(r"[+-]?\d+", text.strip()):
            raise ValueError(f'"{text}" is not a whole number')
        return int(text)
    return cyclopts.convert(type_, tokens)


def parse(app: App, argv: Sequence[str]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The command that ``argv`` asks for, and its arguments.

    Args:
        app: with its commands; its ``config`` is set here.
        argv: without the program's name; ``--a_b`` means ``--a-b``.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    tokens = _tokens(argv)
    if tokens[:1] == ["launch"]:
        # What is not its own is for the ranks to read, with their configuration.
        tokens = ["launch", *split(tokens[1:])]
        app.config = []
    else:
        app.config = layers(config_path(tokens))
    try:
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except UnknownOptionError as error:
        raise InputError(_unknown(app, error)) from None
    except UnusedCliTokensError as error:
        commands = ", ".join(name for name in app if not name.startswith("-"))
        raise InputError(
            f"{(error.unused_tokens or ['?'])[0]!r} is no command ({commands}), and no option's value"
        ) from None
    except CycloptsError as error:
        raise InputError(_sentence(error)) from None
    reject_unknown_variables(app)
    return command, dict(bound.arguments)


def with_stored(app: App, argv: Sequence[str], options: RunConfig, stored: Mapping[str, Any]) -> RunConfig:
    """The options of a run that goes on: those given now, then those that it had.

    Args:
        app: with its commands.
        argv: that gave ``options``.
        options: as given now.
        stored: of the earlier part of the run, by name.

    Raises:
        InputError: where a stored value means nothing any more.
    """
    names = {field.name for field in dataclasses.fields(RunConfig)} - {"resume", "run_dir"}
    # How long to train is said in one of two ways: what is said now replaces what was said then.
    if options.train_steps is not None or options.epochs is not None:
        names -= {"train_steps", "epochs"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stored.toml"
        path.write_text(as_toml({name: value for name, value in stored.items() if name in names}))
        tokens = _tokens(argv)
        app.config = [*layers(config_path(tokens)), Toml(path, use_commands_as_keys=False)]
        try:
            _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            raise InputError(f"what --resume {options.resume} was started with: {_sentence(error)}") from None
    merged: RunConfig = bound.arguments["options"]
    unused = [rule for rule in RULES if merged.mode in rule.refused and not rule.given(options)]
    return merged.replace(**{rule.option: getattr(RunConfig(), rule.option) for rule in unused})


def _tokens(argv: Sequence[str]) -> list[str]:
    return [re.sub(r"^--[^=]*", lambda m: m[0].replace("_", "-"), token) for token in argv]


def config_path(tokens: Sequence[str]) -> str | None:
    """The TOML file that the command line, else the environment, names."""
    for i, token in enumerate(tokens):
        if token == "--config" and i + 1 < len(tokens):
            return tokens[i + 1]
        if token.startswith("--config="):
            return token.partition("=")[2]
    return os.environ.get("MPITRAIN_CONFIG")


def layers(path: str | None) -> list[Any]:
    """What fills in arguments that the command line leaves open, the strongest first.

    Raises:
        InputError: where the file is missing.
    """
    found: list[Any] = [Env(PREFIX, command=False)]
    if path is not None:
        check_file(path)
        found.append(Toml(path, use_commands_as_keys=False))
    return found


def check_file(path: str) -> None:
    """Refuse a configuration file whose form or whose values' types are wrong; unknown keys are found later.

    Raises:
        InputError: naming the file and what is wrong in it.
    """
    try:
        content = tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"--config {path} cannot be read ({reason}): check the path") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"--config {path} is not valid TOML: {error}") from None
    hints = get_type_hints(RunConfig)
    for name, value in content.items():
        if isinstance(value, dict):
            raise InputError(f"[{name}] in {path} is a table, but options stand at the top level: remove the heading")
        hint = hints.get(name.replace("-", "_"))
        wanted = next((t for t in _TYPES if t in (hint, *get_args(hint))), str)
        if hint is not None and (type(value) not in _TYPES[wanted]):
            raise InputError(f"{name} in {path} is {value!r} but must be {_NAMES[wanted]}")


def reject_unknown_variables(app: App) -> None:
    """Refuse a ``MPITRAIN_*`` variable that means nothing: it is a misspelt option.

    Raises:
        InputError: naming the nearest that exists.
    """
    known = _OTHER_VARIABLES | {name.upper().replace("-", "_") for name in option_names(app)}
    for name in sorted(os.environ):
        end = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and end not in known:
            raise InputError(f"the environment variable {name} names no option{_did_you_mean(end, known, PREFIX)}")


def option_names(app: App) -> set[str]:
    """The long options of all commands, without their dashes."""
    names: set[str] = set()
    for command in (app, *(app[name] for name in app if not name.startswith("-"))):
        if command.default_command is not None:
            for argument in command.assemble_argument_collection():
                names |= {name[2:] for name in argument.names if name.startswith("--")}
    return names


def _unknown(app: App, error: UnknownOptionError) -> str:
    token = error.token
    key = (token.keyword or token.value).strip("[]").lstrip("-")
    source = f"in {token.source}" if token.source not in ("", "cli") else "on the command line"
    dashes = "" if token.source not in ("", "cli") else "--"
    known = {n.replace("-", "_") for n in option_names(app)} if not dashes else option_names(app)
    return f"unknown option {dashes}{key} {source}{_did_you_mean(key, known, dashes)}"


def _did_you_mean(name: str, known: set[str], dashes: str = "") -> str:
    near = difflib.get_close_matches(name, sorted(known), 1)
    return f"; did you mean {dashes}{near[0]}?" if near else "; --help lists the options"


def _sentence(error: CycloptsError) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip().rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


DEFAULT_PARAMETER = Parameter(negative="")
