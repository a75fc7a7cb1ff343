"""`trace`: the graph of a run without a model; `cache`: its constant beginning, sent ahead."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ramet
from ramet.errors import DeadlineError
from ramet.runtime.protocol import GenerateRequest, RoleBegin, RoleEnd, Text


@ramet.function
def program(s: ramet.ProgramState, question: str, style: str = "short") -> None:
    s += ramet.system("Be " + style)
    s += ramet.user(question)
    forks = s.fork(2)
    for i, fork in enumerate(forks):
        inner = fork.fork(2)
        inner += f"{i}" + ramet.gen("deep")
        inner.join()
        fork += ramet.gen("x", max_tokens=4, stop=["."])
    forks.join()
    s["both"] = len(s["x"])
    s += ramet.assistant(ramet.select("choice", ["a", "b"]))


def test_nodes_have_ids_lines_and_parents() -> None:
    graph = program.trace("Why?")
    first = program.func.__code__.co_firstlineno
    assert [node.id for node in graph.nodes] == list(range(len(graph.nodes)))
    assert graph.nodes[0].line == first + 2
    assert graph.nodes[0].parents == ()
    assert all(parent < node.id for node in graph.nodes for parent in node.parents)
    assert all(node.parents for node in graph.nodes[1:])


def test_branches_hang_on_their_fork_and_end_in_the_join() -> None:
    graph = program.trace("Why?")
    fork = next(node for node in graph.nodes if node.kind == "fork")
    children = [node for node in graph.nodes if fork.id in node.parents]
    assert [node.branch for node in children] == [((0, 0),), ((0, 1),), ()]
    join = graph.nodes[-5]
    assert join.kind == "join"
    ends = [graph.nodes[parent].branch for parent in join.parents]
    assert ends == [(), ((0, 0),), ((0, 1),)]


def test_graph_prints_branches_indented(capsys: pytest.CaptureFixture[str]) -> None:
    graph = program.trace("Why?")
    graph.print_graph_dfs()
    printed = capsys.readouterr().out
    assert printed == f"{graph}\n"
    assert printed.count("branch 1") == 3
    assert "\n        branch 0\n" in printed


def test_graph_is_plain_data() -> None:
    data = json.loads(json.dumps(program.trace("Why?").to_dict()))
    assert data["program"] == "program"
    assert data["variables"] == ["deep", "x", "both", "choice"]
    gen = next(node for node in data["nodes"] if node.get("name") == "x")
    assert gen["options"] == {"max_new_tokens": 4, "stop": ["."]}


def test_arguments_that_are_not_given_are_placeholders() -> None:
    texts = [node.details.get("text") for node in program.trace().nodes]
    assert "{question}" in texts
    assert "Be short" in texts
    assert "given" in [node.details.get("text") for node in program.bind("given").trace().nodes]


def test_gens_are_answered_by_placeholders_of_their_kind() -> None:
    @ramet.function
    def values(s: ramet.ProgramState) -> list[Any]:
        s += ramet.gen("free") + ramet.gen_int("number") + ramet.gen("json", json_schema={})
        s += ramet.gen("many", n=2) + ramet.select("best", ["p", "q"])
        return [s["free"], int(s["number"]), json.loads(s["json"]), s["best"]]

    assert values.trace().variables == ("free", "number", "json", "many", "best")


def test_body_that_cannot_go_on_raises_its_error() -> None:
    @ramet.function
    def number(s: ramet.ProgramState) -> int:
        s += ramet.gen("x")
        return int(s["x"])

    with pytest.raises(ValueError, match=r"\{x\}"):
        number.trace()


def test_roles_are_rendered_as_the_given_backend_does() -> None:
    @ramet.function
    def rendered(s: ramet.ProgramState) -> None:
        with s.var_scope("turn"):
            s += ramet.user("Hi")
        s += s["turn"]

    graph = rendered.trace(backend=ramet.Fake())
    assert graph.nodes[-1].details["text"] == "<|im_start|>user\nHi<|im_end|>\n"


def prompt(fake: ramet.Fake) -> Any:
    assert len(fake.requests) == 1
    request = fake.requests[0]
    assert isinstance(request, GenerateRequest)
    assert request.sampling.max_new_tokens == 0
    return request.prompt


def test_head_ends_at_the_first_gen() -> None:
    @ramet.function
    def early(s: ramet.ProgramState) -> None:
        s += ramet.user("Q") + ramet.assistant_begin()
        s += ramet.gen("x")
        raise AssertionError("the body goes no further")

    fake = ramet.Fake()
    early.cache(backend=fake)
    assert prompt(fake) == (
        RoleBegin("user"),
        Text("Q"),
        RoleEnd("user"),
        RoleBegin("assistant", "user", generate=True),
    )


def test_head_ends_where_an_argument_is_missing() -> None:
    fake = ramet.Fake()
    usage = program.cache(backend=fake)
    assert prompt(fake)[:2] == (RoleBegin("system"), Text("Be short"))
    assert usage.prompt_tokens == usage.computed_tokens > 0
    fake.requests.clear()
    assert program.cache("given", backend=fake).cached_tokens >= usage.prompt_tokens


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + "a",
        lambda x: "a" + x,
        lambda x: f"{x}",
        lambda x: {"a": 1}[x],
        lambda x: x.upper(),
        lambda x: str(x),
        lambda x: bool(x),
        lambda x: x == 1,
        lambda x: len(x),
        lambda x: list(x),
        lambda x: isinstance(x, str),
        lambda x: x[0],
        lambda x: int(x),
        lambda x: "a" in x,
    ],
)
def test_any_use_of_a_missing_argument_ends_the_head(use: Any) -> None:
    reached = []

    @ramet.function
    def using(s: ramet.ProgramState, x: Any) -> None:
        s += "head"
        use(x)
        reached.append(1)

    fake = ramet.Fake()
    assert using.cache(backend=fake).prompt_tokens == 4
    assert reached == []


def test_program_without_a_constant_beginning_sends_nothing() -> None:
    @ramet.function
    def bare(s: ramet.ProgramState, x: str) -> None:
        s += x + ramet.gen("y")

    fake = ramet.Fake()
    assert bare.cache(backend=fake).prompt_tokens == 0
    assert fake.requests == []


def test_cache_keeps_its_time_limit() -> None:
    fake = ramet.Fake(delay=30)
    with pytest.raises(DeadlineError):
        program.cache("q", backend=fake, timeout=0.01)
    assert fake.num_running == 0


def test_forks_may_be_nested_deeper_than_calls_can_be() -> None:
    @ramet.function
    def deep(s: ramet.ProgramState) -> None:
        for _ in range(1200):
            s = s.fork(1)[0]
        s += ramet.gen("x")

    assert str(deep.trace()).count("branch 0") == 1200
