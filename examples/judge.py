"""A judge that branches, solves and merges: one fork for each thing to look at.

The essay is computed once; the forks run side by side on it. Each writes a remark and then
chooses a grade; the last choice is made with all remarks in view.
"""

import ramet

ESSAY = """\
Every school should have a garden. Pupils who grow carrots learn where food comes from, and they
learn it with their hands. Last year our class planted beans. Some died, because we forgot them
in the holidays, and that taught us more about care than any lesson. A garden is also cheap: a
few tools, some seeds, and a corner of the yard that nobody uses now."""

ASPECTS = {
    "clarity": "Is the text easy to follow?",
    "evidence": "Does the text give examples for what it says?",
    "style": "Is the text pleasant to read?",
}


@ramet.function
def judge(s: ramet.ProgramState, essay: str) -> None:
    s += ramet.system("You judge short essays. Be fair and brief.")
    s += ramet.user(f"Here is an essay.\n\n{essay}") + ramet.assistant("I have read the essay.")
    forks = s.fork(len(ASPECTS))
    for fork, question in zip(forks, ASPECTS.values(), strict=True):
        fork += ramet.user(f"{question} Answer in one sentence.")
        fork += ramet.assistant(ramet.gen("remark", max_tokens=40))
        fork += ramet.user("Your grade?")
        fork += ramet.assistant(ramet.select("grade", ["good", "fair", "poor"]))
    forks.join()
    remarks = [f"{name}: {text}" for name, text in zip(ASPECTS, s["remark"], strict=True)]
    s += ramet.user("Remarks:\n" + "\n".join(remarks) + "\n\nShall we print the essay?")
    s += ramet.assistant(ramet.select("verdict", ["yes", "no"]))


if __name__ == "__main__":
    state = judge.run(ESSAY, temperature=0)
    for name, remark, grade in zip(ASPECTS, state["remark"], state["grade"], strict=True):
        print(f"{name} ({grade}): {remark}")
    print(f"print it: {state['verdict']}")
    print(state.usage)
