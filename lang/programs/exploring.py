"""Running a program without generating anything: `preview`, `trace` and `cache`."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ramet.runtime.protocol import Usage

from ..backends.base import Backend
from ..execution import context
from ..execution.executor import KnownNothingError, Run, RunSettings
from ..states import transcript
from ..states.state import ProgramState
from . import precache, tracing
from .body import call
from .call_graph import CallGraph, graph_of
from .options import RunOptions
from .preview import PreviewBackend

if TYPE_CHECKING:
    from .program import Program


def preview(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the transcript up to the first read of an unknown value."""
    arguments, options = program.split(args, kwargs)
    return transcript.preview(_explore(program, arguments, options, PreviewBackend()).root)


def trace(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallGraph:
    """Return the graph of a run in which every gen is answered by `{name}`."""
    arguments, options = program.split(args, {**kwargs, **_missing(program, args, kwargs)})
    backend = tracing.TraceBackend(options.backend)
    seed = 0 if options.seed is None else options.seed
    run = program.new_run(replace(options, backend=backend, seed=seed))
    program.execute(ProgramState(run, run.root), arguments, on_error="raise")
    return graph_of(run)


def cache(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Usage:
    """Compute the beginning of the prompt."""
    not_given: Any = precache.NotGiven()
    missing = dict.fromkeys(_missing(program, args, kwargs), not_given)
    arguments, options = program.split(args, {**kwargs, **missing})
    backend = context.backend_in_force(options.backend)
    head = precache.HeadBackend()
    run = _explore(program, arguments, options, head)
    tokens = run.root.tokens
    prompt = tokens.prompt() if tokens else ()
    prompt = precache.constant(prompt, reached_gen=head.reached_gen)
    own = {"priority": options.priority or 0, "cache_salt": options.cache_salt or ""}
    return precache.send(backend, prompt, own, options.timeout)


def _missing(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    bound_args, preset = program.bound
    names = {*preset, *kwargs}
    return tracing.fill(program.parameters.signature, (*bound_args, *args), names)


def _explore(
    program: Program, arguments: inspect.BoundArguments, options: RunOptions, backend: Backend
) -> Run:
    """Run the function up to the first value that nobody knows."""
    run_settings = RunSettings(
        program=program.name,
        file=program.file,
        backend=backend,
        sampling=options.sampling,
        seed=options.seed or 0,
        preview=True,
    )
    run = Run(run_settings)
    state = ProgramState(run, run.root)
    try:
        with context.executing(run):
            call(program.body_of(arguments), state)
    except KnownNothingError:
        pass
    finally:
        run.end_body()
    return run
