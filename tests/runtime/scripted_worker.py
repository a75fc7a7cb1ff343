"""A worker whose engine is scripted; `model` names how it behaves."""

from __future__ import annotations

import os
import sys
import time

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import ModelNotFoundError
from ramet.runtime.step import StepPlan
from ramet.runtime.worker import serve

from .scripted import ENCODER, ScriptedRunner


def start(config: EngineConfig) -> Engine:
    print("this goes to stderr, not into the protocol")
    if config.model == "missing":
        raise ModelNotFoundError("there is no model 'missing'")
    if config.model == "broken":
        raise KeyError("vocab")
    if config.model == "dies at start":
        print("giving up", file=sys.stderr, flush=True)
        os._exit(3)
    if config.model == "hangs at start":
        time.sleep(60)
    runner = ScriptedRunner(2000)
    if config.model == "dies":
        runner.fail = _die
    if config.model == "slow":
        runner.fail = _sleep
    return Engine(runner, ENCODER, config, model_info={"model": "scripted", "context_length": 500})


def _die(plan: StepPlan) -> None:
    print("out of everything", file=sys.stderr, flush=True)
    os._exit(7)


def _sleep(plan: StepPlan) -> None:
    time.sleep(0.01)


def main() -> None:
    serve(start)
