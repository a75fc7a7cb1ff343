"""The workloads of the cache benchmarks: each a program, its rows and the options of its run.

They have the shapes of those in the papers on prefix caching (examples before many questions, a
choice of endings, trees of thought, judges, agents, chats, one document with many questions,
nothing shared), small enough for two cores and a model of 135M parameters. What is generated has
a fixed length, so that runs with and without the cache do the same work.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ramet
from tests.benchmarks.distinct_prompts import go_on, prompt

DATA = Path(__file__).parent / "data"
DOCUMENT = Path(__file__).parent.parent.parent / "LICENSE"
LETTERS = "ABCD"

Row = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """One program and its rows, run as one batch."""

    name: str
    program: ramet.Program
    rows: list[Row]


def read(name: str) -> list[Row]:
    """Return the rows of a file of the data folder."""
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


# -- examples before many questions


@ramet.function
def answer(s: ramet.ProgramState, prefix: str, question: str, choices: list[str]) -> None:
    s += prefix + f"Question: {question}\n"
    s += "".join(f"{letter}. {text}\n" for letter, text in zip(LETTERS, choices, strict=True))
    s += "Answer:" + ramet.gen("answer", ignore_eos=True)


def few_shot(size: int) -> Workload:
    first, *rest = read("mmlu")
    start = "The following are multiple choice questions"
    _, *parts = first["prefix"].split(start)
    rows = []
    for part in parts:
        subject = part.split(" about ", 1)[1].split(".", 1)[0].replace(" ", "_")
        own = [row for row in rest if row["subject"] == subject][: 4 * size]
        rows += [
            {"prefix": start + part, "question": row["question"], "choices": row["choices"]}
            for row in own
        ]
    return Workload(
        "few-shot questions (MMLU, 5-shot, 3 subjects)", answer.bind(max_tokens=1), rows
    )


# -- a choice of endings: the examples are shared by all rows, a row's context by its options


@ramet.function
def finish(s: ramet.ProgramState, examples: str, context: str, endings: list[str]) -> None:
    s += examples + context
    s += ramet.select("ending", [f" {ending}" for ending in endings])


def endings(size: int) -> Workload:
    found = read("hellaswag")
    shots = "".join(f"{row['ctx']} {row['endings'][row['label']]}\n\n" for row in found[:5])
    rows = [
        {"examples": shots, "context": row["ctx"], "endings": row["endings"]}
        for row in found[5 : 5 + 4 * size]
    ]
    return Workload("choice of endings (HellaSwag, 5-shot, select)", finish, rows)


# -- tree of thought: three next steps, a vote on each, the best goes on


@ramet.function
def think(s: ramet.ProgramState, examples: str, question: str) -> None:
    s += f"{examples}Question: {question}\nAnswer:"
    for _ in range(2):
        thoughts = s.fork(3)
        for thought in thoughts:
            thought += ramet.gen("step", max_tokens=12, temperature=0.8, ignore_eos=True)
            thought += "\nDoes this step help?" + ramet.select("vote", [" yes", " no"])
        thoughts.join()
        s += s["step"][best(thoughts)] + "\n"
    s += "The answer is" + ramet.gen("answer", max_tokens=4, ignore_eos=True)


def best(thoughts: ramet.ForkGroup) -> int:
    votes = [thought.get_meta_info("vote")["choices"][0]["probability"] for thought in thoughts]
    return max(range(len(votes)), key=votes.__getitem__)


def worked(rows: list[Row]) -> str:
    """Return solved problems as text, without the calculator's marks."""
    texts = (f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows)
    return re.sub(r"<<.*?>>", "", "".join(texts))


def thoughts(size: int) -> Workload:
    found = read("gsm8k")
    examples = worked(found[:2])
    rows = [{"examples": examples, "question": row["question"]} for row in found[2 : 2 + 2 * size]]
    return Workload("tree of thought (GSM8K, 2 levels of 3)", think, rows)


# -- a judge that branches, solves and merges

ASPECTS = ("Is the arithmetic right?", "Is every step explained?", "Is the answer easy to read?")


@ramet.function
def judge(s: ramet.ProgramState, question: str, solution: str) -> None:
    s += ramet.system("You grade the solutions of pupils. Be fair and brief.")
    s += ramet.user(f"The problem: {question}\n\nThe pupil's solution: {solution}")
    forks = s.fork(len(ASPECTS))
    for fork, aspect in zip(forks, ASPECTS, strict=True):
        fork += ramet.user(aspect)
        fork += ramet.assistant(ramet.gen("remark", max_tokens=12, ignore_eos=True))
        fork += ramet.user("Your grade?") + ramet.assistant(ramet.select("grade", list("ABC")))
    forks.join()
    s += ramet.user("Remarks: " + " ".join(s["remark"]) + "\nThe grade of the whole?")
    s += ramet.assistant(ramet.select("verdict", list("ABC")))


def judges(size: int) -> Workload:
    rows = [
        {"question": row["question"], "solution": re.sub(r"<<.*?>>", "", row["answer"])}
        for row in read("gsm8k")[: 4 * size]
    ]
    return Workload("judge (branch, solve, merge; 3 aspects)", judge, rows)


# -- an agent: the model writes a thought, the observation is replayed from the worked answer


@ramet.function
def act(s: ramet.ProgramState, examples: str, question: str, observations: list[str]) -> None:
    s += f"{examples}Question: {question}\n"
    for number, observation in enumerate(observations, 1):
        s += f"Thought {number}:"
        s += ramet.gen(f"thought_{number}", max_tokens=10, ignore_eos=True)
        s += f"\nObservation {number}: {observation}\n"
    s += "Answer:" + ramet.gen("answer", max_tokens=4, ignore_eos=True)


def trace(row: Row) -> list[str]:
    """Return what a calculator answered at each step of a worked answer."""
    return [f"{sum_} = {value}" for sum_, value in re.findall(r"<<(.*?)=(.*?)>>", row["answer"])]


def traced(row: Row) -> str:
    lines = "".join(
        f"Thought {n}: calculate.\nObservation {n}: {seen}\n"
        for n, seen in enumerate(trace(row), 1)
    )
    return f"Question: {row['question']}\n{lines}Answer: {row['answer'].split('#### ')[1]}\n\n"


def agents(size: int) -> Workload:
    found = read("gsm8k")
    examples = "".join(map(traced, found[:3]))
    rows = [
        {"examples": examples, "question": row["question"], "observations": trace(row)}
        for row in found[3 : 3 + 3 * size]
    ]
    return Workload("agent (ReAct, replayed observations)", act, rows)


# -- a chat of four turns


@ramet.function
def chat(s: ramet.ProgramState, turns: list[str], reply_tokens: int) -> None:
    s += ramet.system("You are a helpful assistant.")
    for number, turn in enumerate(turns):
        s += ramet.user(turn)
        s += ramet.assistant(ramet.gen(f"reply_{number}", max_tokens=reply_tokens, ignore_eos=True))


def chats(size: int, reply_tokens: int, name: str) -> Workload:
    found = read("mtbench")
    pairs = [[*found[i]["turns"], *found[i + 1]["turns"]] for i in range(0, 4 * size, 2)]
    rows = [{"turns": turns, "reply_tokens": reply_tokens} for turns in pairs]
    return Workload(name, chat, rows)


# -- one document, many questions

QUESTIONS = (
    "Who is the licensor?",
    "What is a contribution?",
    "Is the patent licence perpetual?",
    "What must a redistribution keep?",
    "What are derivative works?",
    "What does source form mean?",
    "When does the patent licence end?",
    "Who is a contributor?",
    "What does legal entity mean?",
    "May a work be sublicensed?",
    "What is object form?",
    "What does control mean?",
)


@ramet.function
def consult(s: ramet.ProgramState, document: str, question: str) -> None:
    s += ramet.system("Answer from the document, in a few words.")
    s += ramet.user(f"{document}\n\n{question}")
    s += ramet.assistant(ramet.gen("answer", max_tokens=8, ignore_eos=True))


def documents(size: int) -> Workload:
    text = " ".join(DOCUMENT.read_text(encoding="utf-8").split())[:2800]
    rows = [{"document": text, "question": question} for question in QUESTIONS[: 4 * size]]
    return Workload("one document, many questions", consult, rows)


# -- nothing shared


def unshared(size: int) -> Workload:
    rows = [{"text": prompt(number, 250)} for number in range(4 * size)]
    return Workload("nothing shared", go_on, rows)


MAKERS: dict[str, Callable[[int], Workload]] = {
    "few_shot": few_shot,
    "endings": endings,
    "thoughts": thoughts,
    "judges": judges,
    "agents": agents,
    "chats_short": lambda size: chats(2 * size, 4, "chat, 4 turns, short replies (4 tokens)"),
    "chats_long": lambda size: chats(size, 32, "chat, 4 turns, long replies (32 tokens)"),
    "documents": documents,
    "unshared": unshared,
}


def workloads(size: int) -> dict[str, Workload]:
    """Return all workloads; `size` 1 is for a quick run, 2 for the published figures."""
    return {name: make(size) for name, make in MAKERS.items()}
