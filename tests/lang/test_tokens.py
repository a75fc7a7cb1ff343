"""The token chain of a state."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ramet.execution.tokens import Tokens
from ramet.runtime.protocol import RoleBegin, RoleEnd, Segment, Text, TokenIds


@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_any_cutting_of_a_literal_is_one_segment(text: str, cuts: list[int]) -> None:
    tokens = Tokens()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in pairwise(places):
        tokens = tokens.add_text(text[start:end])
    assert tokens.prompt() == ((Text(text),) if text else ())


def test_known_ids_come_first_and_as_one_segment() -> None:
    tokens = Tokens().add_text("a").add_ids(0, TokenIds.of([1, 2]))
    tokens = tokens.add_ids(2, TokenIds.of([3])).add_text("b")
    assert tokens.prompt() == (TokenIds.of([1, 2, 3]), Text("b"))


def test_fork_shares_and_does_not_disturb() -> None:
    trunk = Tokens().add_text("a")
    left, right = trunk.add_text("l"), trunk.add_text("r")
    assert left.prompt() == (Text("al"),)
    assert right.prompt() == (Text("ar"),)
    assert trunk.prompt() == (Text("a"),)


def test_texts_with_special_tokens_stay_apart() -> None:
    tokens = Tokens().add_text("a").add_text("<x>", parse_special=True).add_text("b").add_text("c")
    assert tokens.prompt() == (Text("a"), Text("<x>", True), Text("bc"))


def test_roles_know_the_role_before() -> None:
    tokens = Tokens().begin_role("system").add_text("s").end_role("system").begin_role("user")
    expected: tuple[Segment, ...] = (
        RoleBegin("system"),
        Text("s"),
        RoleEnd("system"),
        RoleBegin("user", "system"),
    )
    assert tokens.prompt() == expected


def test_assistant_turn_opened_last_is_to_be_generated() -> None:
    opened = Tokens().begin_role("assistant")
    assert opened.prompt() == (RoleBegin("assistant", None, generate=True),)
    assert opened.add_text("Sure").prompt() == (RoleBegin("assistant"), Text("Sure"))


def test_last_role_outlives_encoding() -> None:
    tokens = Tokens().begin_role("user").add_ids(0, TokenIds.of([9])).begin_role("assistant")
    assert tokens.prompt()[-1] == RoleBegin("assistant", "user", generate=True)


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5), st.integers(0, 20))
def test_fewer_prefix_tokens_cut_known_ids(parts: list[list[int]], prefix: int) -> None:
    tokens = Tokens()
    for part in parts:
        tokens = tokens.add_ids(tokens.num_known, TokenIds.of(part))
    flat = [token for part in parts for token in part]
    cut = tokens.add_ids(prefix, TokenIds.of([77]))
    assert list(cut.ids()) == [*flat[:prefix], 77]
    assert list(tokens.ids()) == flat
