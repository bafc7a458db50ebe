"""``bench``: measure on these ranks what a run would be made of."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from typing import Annotated

from cyclopts import App, Parameter

from mpitrain.cli.train import World
from mpitrain.config import WireDtype

app = App(name="bench", help="Measurements on these ranks.")


@app.command
def allreduce(
    *,
    sizes: str = "1,1000,79510,3274634,25000000",
    backends: str = "all",
    wire_dtype: WireDtype = "float32",
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    world: World = None,
) -> int:
    """Time every way of summing a vector over all ranks, beside a copy of it in memory and the limit of the wire.

    Args:
        sizes: Lengths of the vector in float32 elements, separated by commas.
        backends: Ways, separated by commas, or all that can be used on these ranks.
        wire_dtype: The type in which elements travel with ring, halving-doubling and hierarchical.
        json_output: Print JSON instead of a table.
        world: The ranks.
    """
    from mpitrain.errors import InputError
    from mpitrain.exchange.allreduce.backends import BACKENDS, usable
    from mpitrain.exchange.allreduce.bench import time_backends
    from mpitrain.reporting.stream import say
    from mpitrain.training.keras_start import start_tensorflow
    from mpitrain.training.phases import phase

    with phase(world, "checking what to measure"):
        asked = backends == "all" or "horovod" in backends.split(",")
        if asked and all(importlib.util.find_spec(name) for name in ("horovod", "tensorflow")):
            # Before Horovod does it, which would let TensorFlow say on every rank what says nothing.
            start_tensorflow(1)
        names = [n for n in BACKENDS if not usable(n, world)] if backends == "all" else backends.split(",")
        for name in names:
            if name not in BACKENDS:
                raise InputError(f"--backends names {name!r}, which is none of {', '.join(BACKENDS)}")
            if why := usable(name, world):
                raise InputError(f"--backends names {name}, which cannot be used here: {why}")
        lengths = _lengths(sizes, 0)
    timings = time_backends(world, lengths, names, wire=wire_dtype)
    if world.rank == 0:
        if json_output:
            say(json.dumps([dataclasses.asdict(t) for t in timings]))
        else:
            say(f"{world.size} ranks, {'crowded' if world.crowded else 'a core each'}; median of the slowest rank")
            say("| elements | way | ms | GB/s of the vector |\n|---:|---|---:|---:|")
            for t in timings:
                speed, chosen = t.bytes_per_second / 1e9, " (auto)" * t.chosen
                say(f"| {t.elements:,} | {t.backend}{chosen} | {t.seconds * 1e3:.4f} | {speed:.2f} |")
    return 0


allreduce.collective = True  # type: ignore[attr-defined]


@app.command
def servers(
    *,
    servers: int = 1,
    sizes: str = "1000,79510,3274634",
    modes: str = "ps-sync,ps-async",
    transports: str = "all",
    optimizer: str = "adam",
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    world: World = None,
) -> int:
    """Count the pushes that servers take in a second from workers that compute nothing, beside a copy in memory.

    Args:
        servers: Number of servers, ranks 0 to SERVERS-1; the others push.
        sizes: Lengths of the parameter vector in float32 elements, separated by commas.
        modes: ps-sync, ps-async, or both, separated by commas.
        transports: Ways, separated by commas, or all that can be used on these ranks.
        optimizer: What servers apply, by name; one that is computed in numpy.
        json_output: Print JSON instead of a table.
        world: The ranks.
    """
    from mpitrain.cluster.roles import assign
    from mpitrain.config import RunConfig
    from mpitrain.errors import InputError
    from mpitrain.exchange.registry import MODES, shards_of
    from mpitrain.exchange.servers.bench import time_servers
    from mpitrain.parameters.layout import Layout
    from mpitrain.parameters.numpy_optimizers import NUMPY
    from mpitrain.parameters.optimizers import OptimizerSpec, needs_keras
    from mpitrain.reporting.stream import say
    from mpitrain.training.phases import phase
    from mpitrain.training.setup import transport_of

    with phase(world, "checking what to measure"):
        names = modes.split(",")
        for name in names:
            if MODES.get(name) is None:
                served = [mode for mode, make in MODES.items() if make is not None]
                raise InputError(f"--modes names {name!r}, which is none of {', '.join(served)}")
        roles = assign(names[0], world.size, servers)
        ways = ["auto", "mpi"] if transports == "all" else transports.split(",")
        for way in ways:
            RunConfig(transport=way).validate()  # type: ignore[arg-type]
        ways = list(dict.fromkeys(transport_of(RunConfig(transport=way), world) for way in ways))  # type: ignore[arg-type]
        spec, lengths = OptimizerSpec(optimizer), _lengths(sizes, 1)
        if needs_keras(spec):
            raise InputError(
                f"--optimizer {optimizer} is one that Keras computes, but servers without TensorFlow are "
                f"measured here: name one of {', '.join(NUMPY)}"
            )
        for length in lengths:
            shards_of(roles, Layout.of([("vector", (length,))]), True)
    timings = time_servers(world, servers, lengths, names, ways, spec)
    if world.rank == 0:
        if json_output:
            say(json.dumps([dataclasses.asdict(t) for t in timings]))
        else:
            say(f"{roles.describe()}, {'crowded' if world.crowded else 'a core each'}; {spec.name}")
            say("| elements | mode | transport | pushes/s | GB/s | all ranks copy, GB/s | part of that | updating |")
            say("|---:|---|---|---:|---:|---:|---:|---:|")
            for t in timings:
                moved, copied = t.bytes_per_second / 1e9, t.copied_per_second / 1e9
                say(
                    f"| {t.elements:,} | {t.mode} | {t.transport} | {t.pushes_per_second:,.0f} | {moved:.3f} | "
                    f"{copied:.1f} | {moved / copied:.2f} | {100 * t.update_share:.0f} % |"
                )
    return 0


servers.collective = True  # type: ignore[attr-defined]


def _lengths(sizes: str, least: int) -> list[int]:
    from mpitrain.errors import InputError

    lengths = [int(text) if text.isdigit() else -1 for text in sizes.split(",")]
    if min(lengths) < least or max(lengths) >= 2**40:
        raise InputError(f"--sizes is {sizes!r} but must be whole numbers, as in 1000,25000000")
    return lengths
