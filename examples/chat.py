"""A chat in the terminal: one line, one answer; Ctrl-D ends it.

python examples/chat.py                       to type
printf 'Hello!\nWho are you?\n' | python examples/chat.py     to send the lines of a pipe

The whole conversation is one program and one prompt that only grows: each turn computes the new
line and nothing else, as the usage at the end shows.
"""

import sys
from collections.abc import Iterable, Iterator

import ramet


@ramet.function
def chat(s: ramet.ProgramState, lines: Iterable[str]) -> None:
    s += ramet.system("You are a friendly assistant. Answer in one or two short sentences.")
    for line in lines:
        s += ramet.user(line)
        s += ramet.assistant(ramet.gen("reply", max_tokens=80))
        print(s["reply"])


def typed_lines() -> Iterator[str]:
    """Yield the lines of standard input, with a prompt where a person types them."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


if __name__ == "__main__":
    state = chat.run(typed_lines(), temperature=0.7, top_p=0.9)
    print(state.usage, file=sys.stderr)
