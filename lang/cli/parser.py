"""The command's arguments and its help."""

from __future__ import annotations

import argparse

OVERVIEW = """\
examples:
  ramet run qa.py:answer --arg question="Why is the sky blue?"
  ramet run qa.py:answer --arg doc=@report.txt --model path/to/model.gguf --temperature 0
  ramet run qa.py:answer --show json | jq .variables
  ramet info
  ramet version

`ramet COMMAND --help` tells more. Exit codes: 0 done, 1 the program failed, 2 wrong usage."""

RUN = """\
Runs a function that is decorated with @ramet.function. A file qa.py such as

  import ramet

  @ramet.function
  def answer(s, question, words: int = 10):
      s += ramet.user(f"{question} In at most {words} words.")
      s += ramet.assistant(ramet.gen("answer"))

is run by

  ramet run qa.py:answer --arg question="Why is the sky blue?" --arg words=5

Values are text; @FILE is the text of a file (@@ for a real @). A parameter that is annotated
int, float or bool gets its value converted. Generated text goes to standard output, everything
else (the model's name, progress, errors) to standard error."""

INFO = """\
Starts the engine and tells what it decided: device and type, the plan for the memory, and
whether the model's chat template only ever appends (then what a conversation has computed is
used again by its next turn) or what differs.

  ramet info
  ramet info --model path/to/model.gguf --json"""

MODEL = "a folder of safetensors, a .gguf file or a hub id; default: a model of 135M parameters"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `ramet run`, `ramet info` and `ramet version`."""
    parser = argparse.ArgumentParser(
        prog="ramet",
        description="Programs that call a language model, run by an engine of their own.",
        epilog=OVERVIEW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(_add(commands, "run", "run a program and print what it generated", RUN))
    info = _add(commands, "info", "tell what the engine does with a model", INFO)
    info.add_argument("--model", metavar="NAME", help=MODEL)
    info.add_argument("--json", action="store_true", help="print one JSON object")
    _add(commands, "version", "print the version", "")
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, brief: str, more: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=brief,
        description=f"{brief.capitalize()}.",
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("program", metavar="FILE.py:FUNCTION", help="the program and where it is")
    run.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the program; may be given again",
    )
    run.add_argument("--model", metavar="NAME", help=MODEL)
    run.add_argument("--max-tokens", type=int, metavar="N", help="limit of each generation")
    run.add_argument("--temperature", type=float, metavar="T", help="0 = always the likeliest")
    run.add_argument("--seed", type=int, metavar="N", help="repeat a run that used this seed")
    run.add_argument(
        "--show",
        choices=("transcript", "text", "json"),
        default="transcript",
        help="transcript with the turns and the usage (default), the raw text, or JSON",
    )
