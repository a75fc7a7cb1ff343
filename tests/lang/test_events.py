"""events(): what happens in a run, in order; and the fields of JSON text that still comes."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet import ProgramEvent, ProgramState
from ramet.errors import GenerationError, InvalidRequestError
from ramet.states.json_fields import JsonFields


@ramet.function
def program(s: ProgramState) -> None:
    s += "a" + ramet.gen("x")
    s["set"] = 3
    group = s.fork(2)
    group += ramet.gen("y")
    group[0].fork(1).__iadd__(ramet.select("z", ["one", "two"]))
    group.join()


@pytest.fixture
def fake() -> ramet.Fake:
    return ramet.Fake({"x": "abcd", "y": "yy", "z": "two"}, stream_chunks=2, delay=0.01)


def test_every_event_of_a_run_with_its_branches(fake: ramet.Fake) -> None:
    state = program.start(backend=fake)
    events = list(state.events())
    assert [e.text for e in events if e.kind == "delta" and e.name == "x"] == ["ab", "cd"]
    values = {(e.name, e.path): e.value for e in events if e.kind == "value"}
    assert values == {
        ("x", ()): "abcd",
        ("set", ()): 3,
        ("y", ((0, 0),)): "yy",
        ("y", ((0, 1),)): "yy",
        ("z", ((0, 0), (0, 0))): "two",
    }
    assert [e.value for e in events if e.kind == "fork"] == [2, 1]
    assert events[0] == ProgramEvent(
        kind="start", name="x", line=program.func.__code__.co_firstlineno + 2
    )
    assert events[-1].kind == "end"
    assert not any(e.kind == "error" for e in events)


def test_events_of_a_variable_are_in_order(fake: ramet.Fake) -> None:
    kinds = [e.kind for e in program.start(backend=fake).events() if e.name == "x"]
    assert kinds == ["start", "delta", "delta", "value"]


def test_readers_are_independent_and_lose_nothing(fake: ramet.Fake) -> None:
    state = program.start(backend=fake)
    found: list[list[ProgramEvent]] = [[], [], []]
    threads = [threading.Thread(target=lambda own=own: own.extend(state.events())) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found[0] == found[1] == found[2] == list(state.events())


def test_failure_is_an_event_of_its_variable_and_of_the_run() -> None:
    fake = ramet.Fake({"x": RuntimeError("boom"), "y": "-"})
    events = list(program.start(backend=fake).events())
    errors = [e for e in events if e.kind == "error"]
    assert errors[0].name == "x"
    assert isinstance(errors[0].value, GenerationError)
    assert errors[-1].name == ""
    assert events[-1].kind == "end"


def test_events_come_while_the_program_runs() -> None:
    gate = threading.Event()

    @ramet.function
    def gated(s: ProgramState) -> None:
        s += ramet.gen("x")
        gate.wait(10)

    events = iter(gated.start(backend=ramet.Fake({"x": "-"})).events())
    kinds = [next(events).kind for _ in range(3)]
    gate.set()
    assert [*kinds, next(events).kind] == ["start", "delta", "value", "end"]


def test_cancelled_run_ends_its_events() -> None:
    state = program.start(backend=ramet.Fake(lambda p, n: "x", delay=30))
    threading.Timer(0.05, state.cancel).start()
    start = time.monotonic()
    assert [e.kind for e in state.events()][-1] == "end"
    assert time.monotonic() - start < 5


def test_events_for_async_for(fake: ramet.Fake) -> None:
    async def main() -> list[str]:
        state = program.start(backend=fake)
        return [event.kind async for event in state.events()]

    kinds = asyncio.run(main())
    assert (kinds[0], kinds[-1]) == ("start", "end")


def test_run_that_is_waited_for_keeps_no_events(fake: ramet.Fake) -> None:
    with pytest.raises(InvalidRequestError, match="start"):
        program(backend=fake).events()


def test_fields_of_a_json_text_come_as_they_are_complete() -> None:
    @ramet.function
    def extract(s: ProgramState) -> None:
        s += ramet.gen("person", json_schema={"type": "object"})

    text = json.dumps({"name": "Ada", "tags": ["a", {"b": 1}]})
    fake = ramet.Fake({"person": text}, stream_chunks=9)
    events = list(extract.start(backend=fake).events())
    fields = [(e.field, e.value) for e in events if e.kind == "field"]
    assert fields == [
        ("name", "Ada"),
        ("tags[0]", "a"),
        ("tags[1].b", 1),
        ("tags[1]", {"b": 1}),
        ("tags", ["a", {"b": 1}]),
    ]
    order = [e.kind for e in events]
    assert order.index("field") < len(order) - 1 - order[::-1].index("delta")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def fields_of(value: Any, path: str = "") -> list[tuple[str, Any]]:
    found = []
    if isinstance(value, dict):
        for key, item in value.items():
            own = f"{path}.{key}" if path else key
            found += [*fields_of(item, own), (own, item)]
    if isinstance(value, list):
        for index, item in enumerate(value):
            found += [*fields_of(item, f"{path}[{index}]"), (f"{path}[{index}]", item)]
    return found


@settings(max_examples=80, deadline=None)
@given(values, st.integers(1, 7), st.sampled_from([None, 2]))
def test_any_cutting_of_any_json_gives_its_fields(
    value: Any, size: int, indent: int | None
) -> None:
    text = json.dumps(value, indent=indent)
    scanner = JsonFields()
    found = []
    for start in range(0, len(text), size):
        found += scanner.feed(text[start : start + size])
    assert found == fields_of(value)


def test_text_that_is_no_json_ends_the_scan() -> None:
    scanner = JsonFields()
    assert scanner.feed('{"a": 1, "b": nope, "c": 2}') == [("a", 1)]
    assert scanner.feed("}]") == []
