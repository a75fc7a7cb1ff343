"""One document, many questions: the document is computed once for the whole batch.

Put what stays first and what changes last; then the questions share everything up to their own.
"""

from pathlib import Path

import ramet

LETTER = Path(__file__).parent / "letter.txt"
QUESTIONS = ["What did she buy?", "What broke?", "When did it break?"]


@ramet.function
def consult(s: ramet.ProgramState, document: str, question: str) -> None:
    s += ramet.system("Answer questions about the letter in a few words.")
    s += ramet.user(document) + ramet.assistant("I have read the letter. What is your question?")
    s += ramet.user(question) + ramet.assistant(ramet.gen("answer", max_tokens=24))


if __name__ == "__main__":
    about_letter = consult.bind(document=LETTER.read_text(encoding="utf-8"))
    rows = [{"question": question} for question in QUESTIONS]
    states = about_letter.run_batch(rows, temperature=0, on_error="raise")
    for question, state in zip(QUESTIONS, states, strict=True):
        print(f"{question} {state['answer']}")
    print(sum((state.usage for state in states[1:]), states[0].usage))
