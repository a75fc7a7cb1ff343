"""An agent that acts and observes (ReAct), with a calculator and a small book of facts.

The prompt only grows, so each step computes its own new line and nothing else. The loop ends with
an answer, or after MAX_STEPS.
"""

import operator
import re

import ramet

FACTS = {"france": "Paris is its capital; 68 million people.", "spain": "48 million people."}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
MAX_STEPS = 4
EXAMPLE = """\
Answer with calculate[sum], look_up[word] and finish[answer].

Question: A shop has 31 red pens and 12 blue pens. How many pens is that?
Action: calculate[31 + 12]
Observation: 43
Action: finish[43]

Question: How many people live in Spain?
Action: look_up[Spain]
Observation: 48 million people.
Action: finish[48 million]

"""


def calculate(text: str) -> str:
    match = re.fullmatch(r"(\d+) ([+*-]) (\d+)", text)
    if match is None:
        return "error: give two whole numbers, as in calculate[7 * 6]"
    return str(OPERATORS[match[2]](int(match[1]), int(match[3])))


def observe(action: str) -> str:
    """Do what an action says."""
    name, _, argument = action.strip().rstrip("]").partition("[")
    if name == "calculate":
        return calculate(argument)
    return FACTS.get(argument.lower(), "nothing found")


@ramet.function
def agent(s: ramet.ProgramState, question: str) -> str:
    s += EXAMPLE + f"Question: {question}\n"
    for _ in range(MAX_STEPS):
        s += "Action:" + ramet.gen("action", max_tokens=24, stop="\n") + "\n"
        if found := re.search(r"finish\[(.*?)\]", s["action"]):
            return found[1]
        s += f"Observation: {observe(s['action'])}\n"
    return f"no answer in {MAX_STEPS} steps"


if __name__ == "__main__":
    for question in ("How many people live in France?", "What is 12 * 7?"):
        state = agent.run(question, temperature=0)
        print(state.text().removeprefix(EXAMPLE) + f"=> {state.ret_value}\n{state.usage}\n")
