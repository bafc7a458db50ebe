"""What ``compare --modes`` names: modes, each with options of its own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from mpitrain.config import MODES, RunConfig
from mpitrain.errors import InputError
from mpitrain.pairs import RULES, check

SHORT = {
    "backup": "backup_workers",
    "bound": "staleness_bound",
    "quorum": "soft_quorum",
    "damping": "staleness_damping",
    "compensation": "delay_compensation",
    "adaptive": "adaptive_compensation",
    "local": "local_steps",
}
"""Other names of options."""

_IMPLIED = {"local_steps": "allreduce", "elastic": "ps-async"}
"""The mode of an option that is named without one."""

_KNOWN = {rule.option for rule in RULES} | {"servers", "learning_rate", "optimizer", "batch_size", "lr_scaling"}


@dataclass(frozen=True)
class Contender:
    """One of the ways to train that are compared.

    Args:
        label: as it was named.
        config: its run.
    """

    label: str
    config: RunConfig


def read_contenders(text: str, common: RunConfig) -> list[Contender]:
    """What ``text`` names, separated by commas: ``allreduce,ps-sync+backup=1,local=8``.

    Args:
        text: each a mode, with ``+OPTION`` or ``+OPTION=VALUE``; ``local=H`` and ``elastic=RHO`` may stand alone.
        common: what all have; an option that a mode has no use for is left out there.

    Raises:
        InputError: for a name that means nothing, and for options that do not go together.
    """
    contenders = [_read(part.strip(), common) for part in text.split(",")]
    check(common, [contender.config.mode for contender in contenders])
    for number, contender in enumerate(contenders):
        if any(contender.config == earlier.config for earlier in contenders[:number]):
            raise InputError(f"--modes names {contender.label!r} twice: name each once")
    return contenders


def _read(part: str, common: RunConfig) -> Contender:
    head, *options = part.split("+")
    if head not in MODES:
        mode = _IMPLIED.get(_option(head.partition("=")[0]))
        if mode is None:
            raise InputError(
                f"--modes names {head!r}, which is none of {', '.join(MODES)}, local=H, elastic=RHO; options follow a "
                "mode as in ps-sync+backup=1"
            )
        head, options = mode, [head, *options]
    config = common.replace(mode=head)
    defaults = RunConfig()
    unused = {rule.option: getattr(defaults, rule.option) for rule in RULES if head in rule.refused}
    config = config.replace(**unused)
    try:
        config = config.replace(**dict(_value(option, part) for option in options))
        config.validate()
        check(config)
    except InputError as error:
        raise InputError(f"--modes {part}: {error}") from None
    return Contender(part, config)


def _option(name: str) -> str:
    name = name.replace("-", "_")
    return SHORT.get(name, name)


def _value(option: str, part: str) -> tuple[str, object]:
    name, given, text = option.partition("=")
    field = next((f for f in dataclasses.fields(RunConfig) if f.name == _option(name)), None)
    if field is None or field.name not in _KNOWN:
        raise InputError(f"there is no option {name!r} to compare; there are {', '.join(sorted({*SHORT} | _KNOWN))}")
    if field.type == "bool":
        if given:
            raise InputError(f"{name} takes no value: write +{name}")
        return field.name, True
    if not given:
        raise InputError(f"{name} needs a value, as in +{name}=2")
    if field.type.startswith("Literal") or field.type.startswith("str"):
        return field.name, text
    try:
        return field.name, int(text) if field.type.startswith("int") else float(text)
    except ValueError:
        kind = "a whole number" if field.type.startswith("int") else "a number"
        raise InputError(f"{name} is {text!r} but must be {kind}") from None
