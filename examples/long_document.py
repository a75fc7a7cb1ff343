"""A document longer than you want to show at once: split, note each part, merge with provenance.

`ramet.split` cuts at paragraphs and sentences; every chunk knows where in the document it stands,
so that each note can say where it comes from.
"""

from pathlib import Path

import ramet

DOCUMENT = Path(__file__).parent.parent / "LICENSE"


@ramet.function
def note(s: ramet.ProgramState, chunk: str) -> None:
    s += f"{chunk.strip()}\n\nIn short, the text above is about"
    s += ramet.gen("topic", max_tokens=24, stop=[".", "\n"])


@ramet.function
def merge(s: ramet.ProgramState, notes: list[str]) -> None:
    s += "The parts of a document:\n" + "\n".join(notes)
    s += '\n\nA title for the document: "' + ramet.gen("title", max_tokens=16, stop=['"', "\n"])


if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8")[:6000]
    chunks = ramet.split(text, 400)
    rows = [{"chunk": chunk.text} for chunk in chunks]
    states = note.run_batch(rows, temperature=0, on_error="raise")
    notes = [f"{c.index + 1}.{state['topic']}" for c, state in zip(chunks, states, strict=True)]
    print("Title:", merge.run(notes, temperature=0)["title"].strip())
    for chunk, line in zip(chunks, notes, strict=True):
        print(f"{line} (characters {chunk.start}-{chunk.end})")
