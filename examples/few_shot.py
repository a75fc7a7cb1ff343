"""Few-shot questions: the same worked examples before each of many questions.

All questions are in the engine together; the examples are computed once, as the last line shows.
`select` can answer nothing but one of the options.
"""

import ramet

EXAMPLES = """\
Sort each word into one of: animal, food, tool.

Word: hammer
Kind: tool

Word: spaniel
Kind: animal

Word: porridge
Kind: food

Word: screwdriver
Kind: tool

Word: omelette
Kind: food

Word: seagull
Kind: animal

"""

WORDS = ["wrench", "donkey", "noodles", "saw", "eagle", "cake"]


@ramet.function
def sort(s: ramet.ProgramState, word: str) -> None:
    s += EXAMPLES + f"Word: {word}\nKind:"
    s += ramet.select("kind", [" animal", " food", " tool"])


if __name__ == "__main__":
    states = sort.run_batch([{"word": word} for word in WORDS], on_error="raise")
    for word, state in zip(WORDS, states, strict=True):
        print(f"{word:8}{state['kind']}")
    print(sum((state.usage for state in states[1:]), states[0].usage))
