"""Fields of a letter, one at a time: choices are scored, free text ends at a line's end.

The program writes the names of the fields, the model only their values; so the result always has
all of them, in this order.
"""

from pathlib import Path

import ramet

LETTER = Path(__file__).parent / "letter.txt"


@ramet.function
def extract(s: ramet.ProgramState, letter: str) -> dict[str, str]:
    s += f"{letter}\n\nThe facts of this letter, one a line.\n"
    s += "Product:" + ramet.gen("product", max_tokens=12, stop="\n")
    s += "\nIt broke on:" + ramet.gen("day", max_tokens=8, stop="\n")
    s += "\nSigned by:" + ramet.gen("name", max_tokens=8, stop="\n")
    s += "\nMood of the writer:" + ramet.select("mood", [" pleased", " neutral", " angry"])
    s += "\nWants:" + ramet.select("wants", [" a refund", " a new one", " nothing"])
    return {name: s[name].strip() for name in ("product", "day", "name", "mood", "wants")}


if __name__ == "__main__":
    state = extract.run(LETTER.read_text(encoding="utf-8"), temperature=0)
    for field, value in state.ret_value.items():
        print(f"{field:8} {value}")
    print(state.usage)
