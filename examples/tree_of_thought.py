"""Tree of thought: try some next steps, let the model vote on each, go on from the best.

Every step is a fork. `forks.map` runs the branches side by side although each reads its own vote;
the problem and the steps taken so far are computed once for all of them.
"""

import ramet

PROBLEM = "Tom has 3 boxes with 4 pens each. He gives 5 pens away. How many pens are left?"
BRANCHES, LEVELS = 3, 2


def propose(s: ramet.ProgramState, branch: int) -> float:
    """Write a next step in a branch, and return how likely the model finds it to be right."""
    s += ramet.gen("step", max_tokens=32, stop="\n", temperature=0.8)
    s += "\nIs this step right? Answer yes or no:" + ramet.select("vote", [" yes", " no"])
    yes, _ = s.get_meta_info("vote")["choices"]
    return float(yes["probability"])


@ramet.function
def solve(s: ramet.ProgramState, problem: str) -> None:
    s += f"Problem: {problem}\nSolve it in short steps, one a line.\n"
    for level in range(1, LEVELS + 1):
        s += f"Step {level}:"
        forks = s.fork(BRANCHES)
        votes = forks.map(propose)
        forks.join()
        best = max(range(BRANCHES), key=votes.__getitem__)
        for number, (step, vote) in enumerate(zip(s["step"], votes, strict=True)):
            print(f"{'*' if number == best else ' '} {vote:.2f} step {level}:{step}")
        s += s["step"][best] + "\n"
    s += "The answer is" + ramet.gen("answer", max_tokens=12, stop=[".", "\n"], temperature=0)


if __name__ == "__main__":
    state = solve.run(PROBLEM, seed=1)
    print(f"The answer is{state['answer']}")
    print(state.usage)
