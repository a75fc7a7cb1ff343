"""Programs as SGLang's users write them, through `import ramet as sgl`, on scripted answers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import ramet as sgl

FEW_SHOT = "Q: What is 1 + 1?\nA: 2\n\nQ: What is 2 + 3?\nA: 5\n\n"


@sgl.function
def few_shot_qa(s: sgl.ProgramState, question: str) -> None:
    s += FEW_SHOT
    s += "Q: " + question + "\nA:" + sgl.gen("answer", max_tokens=8, stop="\n")


def test_few_shot_questions() -> None:
    backend = sgl.Fake({"answer": " 9\n\nQ: What next?"})
    states = few_shot_qa.run_batch(
        [{"question": f"What is 4 + {i}?"} for i in range(5)], temperature=0, backend=backend
    )
    assert [state["answer"] for state in states] == [" 9"] * 5
    assert states[3].text() == FEW_SHOT + "Q: What is 4 + 3?\nA: 9"


def test_few_shot_rows_find_the_examples_in_the_cache() -> None:
    backend = sgl.Fake({"answer": " 9"})
    few_shot_qa.cache(backend=backend)
    state = few_shot_qa("What is 4 + 5?", backend=backend)
    assert state.get_meta_info("answer")["cached_tokens"] >= len(FEW_SHOT)


@sgl.function
def two_turns(s: sgl.ProgramState, question_1: str, question_2: str) -> None:
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=16))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=16))


def test_conversation_of_two_turns() -> None:
    backend = sgl.Fake({"answer_1": "An island.", "answer_2": "Sandy."})
    state = two_turns.run("Where?", "How?", backend=backend)
    assert [m["role"] for m in state.messages()] == [
        *("system", "user", "assistant", "user", "assistant")
    ]
    assert state.messages()[-1]["content"] == "Sandy."
    assert "An island." in backend.render(backend.requests[1].prompt)


@sgl.function
def expert_answer(s: sgl.ProgramState, question: str) -> None:
    s += "Question: " + question + "\n"
    s += "The best person to answer is" + sgl.gen("expert", stop=[".", "\n"]) + ".\n"
    s += f"As {s['expert'].strip()} would say: " + sgl.gen("answer", stop=".") + "."


def test_expert_whose_name_is_read_in_the_middle() -> None:
    backend = sgl.Fake({"expert": " a botanist. Yes", "answer": "water it. Daily"})
    state = expert_answer("Why is it dry?", backend=backend)
    assert state.text().endswith("As a botanist would say: water it.")


@sgl.function
def tip_suggestion(s: sgl.ProgramState) -> None:
    s += "Two tips for staying healthy: 1. Balanced diet. 2. Regular exercise.\n\n"
    forks = s.fork(2)
    for index, fork in enumerate(forks):
        fork += f"Expand tip {index + 1} into a paragraph:\n"
        fork += sgl.gen("detailed_tip", max_tokens=64, stop=["\n\n"])
    s += "Tip 1: " + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2: " + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary")


def test_forks_write_their_tips_at_the_same_time() -> None:
    def answer(prompt: str, name: str) -> str:
        number = re.findall(r"tip (\d) into", prompt)[-1:]
        return f"{name} {number[0]}" if number else "eat and run"

    state = tip_suggestion(backend=sgl.Fake(answer))
    assert "Tip 1: detailed_tip 1\nTip 2: detailed_tip 2\nIn summary" in state.text()


def test_generation_that_matches_a_regex() -> None:
    address = r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"

    @sgl.function
    def ip(s: sgl.ProgramState) -> None:
        s += "The IP address of a name server is " + sgl.gen("ip", regex=address, temperature=0)

    assert ip(backend=sgl.Fake({"ip": "8.8.8.8"}))["ip"] == "8.8.8.8"
    with pytest.raises(sgl.errors.GenerationError, match="does not match"):
        ip(backend=sgl.Fake({"ip": "eight"}))


def test_generation_of_json_piece_by_piece() -> None:
    @sgl.function
    def city(s: sgl.ProgramState) -> None:
        s += '{"name": ' + sgl.gen_string("name")
        s += ', "population": ' + sgl.gen_int("population") + ", "
        s += '"capital": ' + sgl.gen("capital", dtype=bool) + "}"

    backend = sgl.Fake({"name": '"Rome"', "population": "2800000", "capital": "True"})
    found = json.loads(city(backend=backend).text().replace("True", "true"))
    assert found == {"name": "Rome", "population": 2800000, "capital": True}


def test_generation_of_json_by_a_regex() -> None:
    character = r'\{"name": "[\w ]{1,16}", "house": "(Gryffindor|Slytherin)"\}'

    @sgl.function
    def program(s: sgl.ProgramState, name: str) -> None:
        s += name + " is a character.\n" + sgl.gen("json", max_tokens=64, regex=character)

    text = '{"name": "Harry", "house": "Gryffindor"}'
    assert json.loads(program("Harry", backend=sgl.Fake({"json": text}))["json"])["name"] == "Harry"


@sgl.function
def tool_use(s: sgl.ProgramState, question: str) -> None:
    s += "To answer '" + question + "', a "
    s += sgl.gen("tool", choices=["calculator", "web browser"]) + " is used. "
    if s["tool"] == "calculator":
        s += "The expression is" + sgl.gen("expression")
    elif s["tool"] == "web browser":
        s += "The address is" + sgl.gen("url")


@pytest.mark.parametrize(
    ("tool", "variable"), [("calculator", "expression"), ("web browser", "url")]
)
def test_tool_is_chosen_and_the_program_branches(tool: str, variable: str) -> None:
    state = tool_use("2 + 2", backend=sgl.Fake({"tool": tool, "expression": " 2+2", "url": " w"}))
    assert state["tool"] == tool
    assert variable in state
    assert state.get_meta_info("tool")["choices_method"] == "token_length_normalized"


@sgl.function
def react(s: sgl.ProgramState, question: str) -> str:
    s += f"Question: {question}\n"
    for i in range(1, 4):
        s += f"Thought {i}:" + sgl.gen("thought", stop=["Action", "Observation"])
        s += f"Action {i}:" + sgl.gen(f"action_{i}", stop="\n") + "\n"
        kind, _, argument = s[f"action_{i}"].strip().partition("[")
        if kind == "finish":
            return str(argument.rstrip("]"))
        s += f"Observation {i}: {argument.rstrip(']')} is a city.\n"
    return ""


def test_agent_goes_on_until_it_finishes() -> None:
    backend = sgl.Fake(
        {"thought": " hm\n", "action_1": " search[Rome]\n", "action_2": " finish[Rome]\n"}
    )
    state = react("Where?", backend=backend)
    assert state.ret_value == "Rome"
    assert "Observation 1: Rome is a city." in state.text()
    assert "action_3" not in state


@sgl.function
def tree_search(s: sgl.ProgramState, question: str, width: int) -> str:
    s += sgl.user(question)
    plans = s.fork(width)
    plans += lambda i: sgl.user(f"Plan {i}.") + sgl.assistant(sgl.gen("plan", max_tokens=32))
    answers = [plan.fork(width) for plan in plans]
    for group in answers:
        group += sgl.user("Now answer.") + sgl.assistant(sgl.gen("answer", max_tokens=32))
    votes = [branch["answer"] for group in answers for branch in group]
    return str(max(set(votes), key=votes.count))


def test_tree_of_forks_in_forks() -> None:
    backend = sgl.Fake(lambda prompt, name: "7" if "Plan 1" in prompt else "4")
    state = tree_search("2 + 2?", 3, backend=backend)
    assert state.ret_value == "4"
    assert len(backend.requests) == 3 + 9


@sgl.function
def parallel_decoding(s: sgl.ProgramState, topic: str) -> None:
    s += "Act as a helpful assistant.\nUSER: Give tips on " + topic + ".\nASSISTANT:"
    s += "Here are some tips:\n1." + sgl.gen("tips", stop=["\n\n"])
    tips = [tip.strip() for tip in s["tips"].split("\n")]
    forks = s.fork(len(tips))
    for i in range(len(tips)):
        forks[i] += f"\nIn detail, {tips[i]}:" + sgl.gen("detailed_tip")
    forks.join()
    s["report"] = "\n".join(s["detailed_tip"])


def test_parallel_decoding_gathers_in_the_order_of_the_branches() -> None:
    backend = sgl.Fake(
        lambda prompt, name: "eat\nrun\nrest" if name == "tips" else prompt[-6:].strip(" ,:")
    )
    assert parallel_decoding("health", backend=backend)["report"] == "eat\nrun\nrest"


def test_parallel_encoding_appends_the_parts() -> None:
    @sgl.function
    def program(s: sgl.ProgramState, contexts: list[str], question: str) -> None:
        s += "Read these.\n"
        forks = s.fork(len(contexts))
        forks += lambda i: contexts[i] + "\n"
        forks.join(mode="concate_and_append")
        s += question + sgl.gen("answer")

    state = program(["One.", "Two."], "Which?", backend=sgl.Fake({"answer": " both"}))
    assert state.text() == "Read these.\nOne.\nTwo.\nWhich? both"


def test_streaming_of_one_variable_and_of_everything() -> None:
    backend = sgl.Fake({"answer_1": "First answer.", "answer_2": "Second answer."})
    state = two_turns.run("a", "b", backend=backend, stream=True)
    pieces = list(state.text_iter("answer_1"))
    assert len(pieces) > 1
    assert "".join(pieces) == "First answer."
    assert "".join(state.text_iter()) == state.text()


@pytest.mark.parametrize(
    ("dtype", "text"), [(int, "-12"), ("float", "1.5"), (bool, "True"), ("str", '"a b"')]
)
def test_values_of_a_dtype_stay_text(dtype: Any, text: str) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "x = " + sgl.gen("x", dtype=dtype)

    assert program(backend=sgl.Fake({"x": text}))["x"] == text


def test_number_ends_at_a_space_or_a_line_end() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "x = " + sgl.gen_int("x") + ";"

    backend = sgl.Fake({"x": "12 \n"})
    assert program(backend=backend, stop="STOP").text() == "x = 12;"
    request = backend.requests[0]
    assert request.sampling.stop == ("STOP", " ", "\n")  # type: ignore[union-attr]


def test_hellaswag_chooses_the_likeliest_ending() -> None:
    @sgl.function
    def ending(s: sgl.ProgramState, question: str, choices: list[str]) -> None:
        s += "Activity: swimming. He dives in.\n\n" + question
        s += sgl.select("answer", choices=choices, choices_method=sgl.greedy_token_selection)

    rows = [{"question": f"{i}:", "choices": [f" a{i}", f" b{i}"]} for i in range(4)]
    backend = sgl.Fake(lambda prompt, name: f" b{prompt[-2]}")
    states = ending.run_batch(rows, backend=backend, temperature=0, num_threads=2)
    assert [rows[i]["choices"].index(state["answer"]) for i, state in enumerate(states)] == [1] * 4


def test_number_of_speculated_tokens_is_taken_and_reported() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def character(s: sgl.ProgramState, name: str) -> None:
        s += name + " was born in" + sgl.gen("birth", stop=",") + ", a" + sgl.gen("job", stop=".")

    backend = sgl.Fake({"birth": " 1900, in", "job": " poet."})
    state = character.bind(name="Ada")(backend=backend)
    assert state.text() == "Ada was born in 1900, a poet"
    assert state.get_meta_info("birth")["speculation"] == "not applicable"
    assert "speculation" not in few_shot_qa("q", backend=sgl.Fake({"answer": "a"})).get_meta_info(
        "answer"
    )


def test_roles_as_blocks_and_as_begin_and_end() -> None:
    @sgl.function
    def blocks(s: sgl.ProgramState) -> None:
        with s.user():
            s += "Hello"
        s += sgl.assistant_begin() + sgl.gen("x") + sgl.assistant_end()
        s += sgl.user() + sgl.user_begin() + "Bye" + sgl.user_end()

    state = blocks(backend=sgl.Fake({"x": "Hi"}))
    assert [m["content"] for m in state.messages()] == ["Hello", "Hi", "", "Bye"]


def test_reasoning_has_a_variable_of_its_own_and_leaves_the_text() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += sgl.user("2 + 2?")
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("a"), model_type="deepseek-r1"))
        s += sgl.user("Sure?") + sgl.assistant(sgl.gen("b"))

    backend = sgl.Fake({"a": "two and two</think>\n\n4", "b": "Yes"})
    state = program(backend=backend)
    assert (state["a"], state["a_reasoning_content"]) == ("4", "two and two")
    assert "two and two" not in backend.render(backend.requests[1].prompt)
    assert state.messages()[1]["content"] == "4"
