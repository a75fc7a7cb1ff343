"""Patterns that stop a text: what Python's `re` would find, in linear time."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.prompts.stop_regex import (
    MAX_STATES,
    StopRegex,
    compile_pattern,
    compile_patterns,
)
from ramet.runtime.protocol import InvalidRequestError


def first_match(pattern: str, text: str) -> tuple[int, int] | None:
    """Return the match that is complete first, as ours finds it."""
    regex = StopRegex(compile_pattern(pattern))
    for place, char in enumerate(text):
        start = regex.advance(char, place)
        if start is not None:
            return start, place + 1
    return None


def by_definition(pattern: str, text: str) -> tuple[int, int] | None:
    """Return the smallest end of any full match, and the smallest start of those that end there."""
    compiled = re.compile(pattern)
    for end in range(len(text) + 1):
        for start in range(end + 1):
            if compiled.fullmatch(text, start, end):
                return start, end
    return None


ATOMS = st.sampled_from(
    ["a", "b", "c", ".", r"\d", r"\w", r"\s", r"\D", r"\W", "[ab]", "[^a]", "[a-c1]", r"[\d-]", "é",
     r"\n", r"\.", "[]a]", r"\x61"]
)  # fmt: skip
SUFFIXES = st.sampled_from(["", "*", "+", "?", "{2}", "{1,2}", "{,2}", "{0,}", "*?", "+?", "{1}?"])


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda some: f"({'|'.join(some)})"),
        st.tuples(inner, SUFFIXES).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


PATTERNS = st.recursive(ATOMS, _grow, max_leaves=6)


@settings(max_examples=400, deadline=None)
@given(pattern=PATTERNS, text=st.text("abcé1 .\n-]", max_size=9))
def test_the_match_that_is_complete_first_is_the_one_of_the_definition(
    pattern: str, text: str
) -> None:
    if re.fullmatch(pattern, ""):
        with pytest.raises(InvalidRequestError, match="the empty text"):
            compile_pattern(pattern)
        return
    assert first_match(pattern, text) == by_definition(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("^ab", "abab", (0, 2)),
        ("^ab", "xab", None),
        (r"\Aa|b", "cab", (2, 3)),
        ("a.c|bc", "abc", (0, 3)),  # both end there: the earliest beginning
        (r"\n\n+", "a\n\n\nb", (1, 3)),  # complete at the second newline
        ("[^\\W\\d]", "1_", (1, 2)),
        ("{a}", "{a}", (0, 3)),
        ("a{x}", "a{x}", (0, 4)),
        (r"[\b]", "\b", (0, 1)),
        (r"\u00e9\U0001F999", "é🦙", (0, 2)),
        ("(?P<year>\\d{4})-", "in 1999-", (3, 8)),
        ("((a*)*)*b", "aaab", (0, 4)),
    ],
)
def test_examples(pattern: str, text: str, found: tuple[int, int] | None) -> None:
    assert first_match(pattern, text) == found


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"(a)\1", "a back-reference.* at character 3"),
        ("(?P<x>a)(?P=x)", "a back-reference.* at character 8"),
        ("a(?=b)", "look-ahead.* at character 1"),
        ("(?!b)a", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        ("(?>a)", "an atomic group"),
        ("(?i)a", "flags"),
        ("(?(1)a)", "a conditional group"),
        ("a++", "possessive"),
        ("a**", "a repeat of a repeat"),
        ("*a", "a repeat of nothing at character 0"),
        ("a|+", "a repeat of nothing at character 2"),
        ("{2}", "a repeat of nothing"),
        ("^*a", "a repeat of the beginning"),
        ("a$", r"\$: the end of the text"),
        (r"a\b", "a word boundary"),
        (r"a\Z", "the end of the text"),
        (r"\q", r"the unknown escape \\q"),
        (r"\012", "octal"),
        (r"\x4", "without 2 hexadecimal digits"),
        (r"\U00110000", "without 8 hexadecimal digits"),
        ("a\\", "with nothing after it"),
        ("(a", r"a '\(' without its '\)'"),
        ("a)", r"unbalanced '\)'"),
        ("[a", "without its ']'"),
        ("[a-", "without its ']'"),
        ("[b-a]", "wrong way round"),
        (r"[a-\d]", "ends at a kind"),
        ("a{3,2}", "wrong way round"),
        ("(" * 60 + "a" + ")" * 60, "groups inside one another"),
        ("a*", "matches the empty text"),
        ("(|a)", "matches the empty text"),
        ("^", "matches the empty text"),
        ("a{5000}", "states"),
        ("((a{99}){99}){99}", "states"),
        ("((((a?){999}){999}){999}){9}b", "states"),
        ("a{" + "9" * 200 + "}", "states"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(pattern: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        compile_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*)(.*)(.*)b", "a{1,100}b"])
def test_work_grows_with_the_text_whatever_the_pattern(pattern: str) -> None:
    steps = []
    for length in (1000, 2000, 4000):
        regex = StopRegex(compile_pattern(pattern))
        assert all(regex.advance("a", place) is None for place in range(length))
        assert regex.num_steps <= 3 * len(regex.pattern.states) * length
        steps.append(regex.num_steps)
    assert steps[2] - steps[1] <= 2.1 * (steps[1] - steps[0])


def test_states_are_never_more_than_allowed() -> None:
    for pattern in ("a{4090}", "(ab?|c){1,400}", "(a|b|c|d|e){580}", "((a*){30}b){20}"):
        assert len(compile_pattern(pattern).states) <= MAX_STATES + 1


def test_the_states_of_all_patterns_of_a_request_are_bounded_together() -> None:
    patterns = [f"a{{{900 + index}}}" for index in range(5)]
    assert len(compile_patterns(patterns[:4])) == 4
    with pytest.raises(InvalidRequestError, match=r"the 5 patterns .* have 4515 states .* 4096"):
        compile_patterns(patterns)
    assert len(compile_patterns(["a{4090}"])) == 1


def test_the_earliest_beginning_of_what_may_still_match_is_known() -> None:
    regex = StopRegex(compile_pattern("abc|bd"))
    seen = []
    for place, char in enumerate("xabxb"):
        regex.advance(char, place)
        seen.append(regex.earliest)
    assert seen == [None, 1, 1, None, 4]
