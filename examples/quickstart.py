from pathlib import Path

import ramet


@ramet.function
def review(s, letter):
    s += ramet.system("Answer questions about the letter in a few words.")
    s += ramet.user(letter) + ramet.assistant("I have read the letter. What is your question?")
    forks = s.fork(3)
    for i, question in enumerate(["Who signed the letter?", "What broke?", "When did it break?"]):
        forks[i] += ramet.user(question) + ramet.assistant(ramet.gen("answer", max_tokens=24))
    forks.join()
    s += ramet.user("Is she pleased?") + ramet.assistant(ramet.select("pleased", ["Yes", "No"]))


state = review.run(letter=Path("examples/letter.txt").read_text(), temperature=0)
print(" ".join(state["answer"]), f"Pleased: {state['pleased']}", state.usage, sep="\n")
