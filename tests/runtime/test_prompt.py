from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.prompts.chat_template import ChatTemplate
from ramet.runtime.prompts.prompt import PromptEncoder
from ramet.runtime.prompts.tokenizer import Tokenizer
from ramet.runtime.protocol import (
    ChatTemplateError,
    InvalidRequestError,
    RoleBegin,
    RoleEnd,
    Segment,
    Text,
    TokenIds,
)

from .test_chat_template import CHATML, LLAMA3, MISTRAL
from .test_tokenizer import TEXTS, sentencepiece
from .tiny_tokenizers import write_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return Tokenizer.from_gguf(write_gguf(path, bos=3))


@pytest.fixture(scope="module")
def with_bos(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return Tokenizer.from_gguf(write_gguf(path, bos=3, add_bos=True))


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, ChatTemplate(CHATML, tokenizer))


def ids_of(encoder: PromptEncoder, *prompt: Segment) -> list[int]:
    return list(encoder.encode(prompt).ids)


def cut(text: str, places: Sequence[int]) -> list[Segment]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [Text(text[a:b]) for a, b in pairwise(bounds)]


@given(text=TEXTS.filter(bool), places=st.lists(st.integers(0, 10**6), max_size=8))
@settings(max_examples=80, deadline=None)
def test_any_way_of_cutting_a_literal_gives_the_same_ids(
    encoder: PromptEncoder, text: str, places: list[int]
) -> None:
    turn = (RoleBegin("user", "system"), RoleEnd("user"))
    pieces = cut(text, places)
    assert ids_of(encoder, *pieces) == encoder.tokenizer.encode(text)
    whole = ids_of(encoder, turn[0], Text(text), turn[1])
    assert ids_of(encoder, turn[0], *pieces, turn[1]) == whole


@given(text=TEXTS, option=TEXTS.filter(bool), places=st.lists(st.integers(0, 10**6), max_size=4))
@settings(max_examples=60, deadline=None)
def test_options_are_encoded_with_the_run_as_one_string(
    encoder: PromptEncoder, text: str, option: str, places: list[int]
) -> None:
    for head in ((), (TokenIds.of([5]),), (RoleBegin("assistant", "user", True),)):
        (row,) = encoder.encode_options((*head, *cut(text, places)), [option])
        assert list(row) == ids_of(encoder, *head, Text(text + option))


def test_roles_are_encoded_as_the_whole_conversation_is(encoder: PromptEncoder) -> None:
    prompt = (
        RoleBegin("user"),
        Text("Hello <|im_end|>"),
        RoleEnd("user"),
        RoleBegin("assistant", "user", generate=True),
    )
    special = encoder.tokenizer.special_ids
    start, end = special["<|im_start|>"], special["<|im_end|>"]
    parts: list[str | int] = [
        start,
        "system\nBe nice.",
        end,
        "\n",
        start,
        "user\nHello <|im_end|>",
        end,
        "\n",
        start,
        "assistant\n",
    ]
    assert ids_of(encoder, *prompt) == encoder.tokenizer.encode_parts(parts)
    assert encoder.render(prompt) == (
        "<|im_start|>system\nBe nice.<|im_end|>\n<|im_start|>user\nHello <|im_end|><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_spelling_a_special_token_warns_once(encoder: PromptEncoder) -> None:
    encoded = encoder.encode((Text("a <|im_"), Text("end|> b <|im_end|>")))
    assert len(encoded.warnings) == 1
    assert "'<|im_end|>'" in encoded.warnings[0]
    assert encoder.encode((Text("<|im_end|>", parse_special=True),)).warnings == ()


def test_special_text_becomes_the_token(encoder: PromptEncoder) -> None:
    end = encoder.tokenizer.special_ids["<|im_end|>"]
    assert ids_of(encoder, Text("<|im_", True), Text("end|>", True)) == [end]
    assert end not in ids_of(encoder, Text("<|im_"), Text("end|>", True))


def test_known_ids_stay_as_they_are(encoder: PromptEncoder) -> None:
    encoded = encoder.encode((TokenIds.of([7, 8]), TokenIds.of([9]), Text("a"), TokenIds.of([5])))
    assert encoded.prefix_tokens == 3
    assert list(encoded.ids) == [7, 8, 9, *encoder.tokenizer.encode("a"), 5]


def test_bos_comes_first_at_most_once(with_bos: Tokenizer) -> None:
    encoder = PromptEncoder(with_bos, ChatTemplate(LLAMA3, with_bos))
    hello = with_bos.encode("Hello")
    assert ids_of(encoder, Text("Hello")) == [3, *hello]
    assert ids_of(encoder, TokenIds(), Text("Hello")) == [3, *hello]
    assert ids_of(encoder, TokenIds.of([7]), Text("Hello")) == [7, *hello]
    assert ids_of(encoder, Text("<s>Hello", True)) == [3, *hello]
    assert ids_of(encoder, RoleBegin("user")).count(3) == 1
    assert ids_of(encoder) == [3]
    assert encoder.render((Text("Hello"),)) == "<s>Hello"
    assert [list(row) for row in encoder.encode_options((), ["Hello"])] == [[3, *hello]]


def test_a_prefix_space_stands_only_at_the_start(tmp_path_factory: pytest.TempPathFactory) -> None:
    tokenizer = sentencepiece(tmp_path_factory.mktemp("spm"))
    encoder = PromptEncoder(tokenizer, ChatTemplate(MISTRAL, tokenizer))
    first, more = tokenizer.encode("hello"), tokenizer.encode("hello", at_start=False)
    assert first != more
    assert ids_of(encoder, Text("hello")) == [1, *first]
    assert ids_of(encoder, TokenIds.of([1, 300 - 30]), Text("hello"))[2:] == more
    rows = encoder.encode_options((), ["hello"]), encoder.encode_options((TokenIds.of([1]),), ["a"])
    assert list(rows[0][0]) == [1, *first]
    assert list(rows[1][0]) == [1, *tokenizer.encode("a", at_start=False)]


def test_stop_ids_are_those_of_the_text_and_of_the_turn(with_bos: Tokenizer) -> None:
    assert PromptEncoder(with_bos, ChatTemplate(MISTRAL, with_bos)).stop_ids == {2}
    source = CHATML.replace("<|im_end|>", "</s>")
    assert PromptEncoder(with_bos, ChatTemplate(source, with_bos)).stop_ids == {2, 4}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ((), "the prompt is empty"),
        ((Text(""), TokenIds()), "the prompt is empty"),
        ((RoleBegin("boss"),), "unknown role 'boss': roles are system, user, assistant, tool"),
        ((RoleEnd("boss"),), "unknown role"),
        ((Text("a\udc00"),), "surrogate"),
        ((Text("a\ud83d"), Text("\ude00"), Text("\ud800", True)), "surrogate"),
        ((Text(3),), "must be a string"),  # type: ignore[arg-type]
        ((TokenIds.of([460]),), "token id 460 is outside the vocabulary: ids are 0 … 459"),
        ((Text("a"), TokenIds.of([3, -1])), "token id -1"),
    ],
)
def test_a_bad_prompt_is_an_invalid_request(
    encoder: PromptEncoder, prompt: tuple[Segment, ...], words: str
) -> None:
    assert encoder.tokenizer.vocab_size == 460
    with pytest.raises(InvalidRequestError, match=words):
        encoder.encode(prompt)


def test_a_forbidden_order_of_roles_is_a_template_error(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer, ChatTemplate(MISTRAL, tokenizer))
    with pytest.raises(ChatTemplateError, match="alternate"):
        encoder.encode((RoleBegin("user", "user"),))
    with pytest.raises(ChatTemplateError, match="no chat template"):
        PromptEncoder(tokenizer, ChatTemplate(None)).encode((RoleBegin("user"),))


def test_an_empty_option_needs_a_token_of_its_own(encoder: PromptEncoder) -> None:
    with pytest.raises(InvalidRequestError, match="option 1 is empty"):
        encoder.encode_options((TokenIds.of([5]),), ["yes", ""])
    with pytest.raises(InvalidRequestError, match="both empty"):
        encoder.encode_options((), [""])
    with pytest.raises(InvalidRequestError, match="surrogate"):
        encoder.encode_options((Text("a"),), ["\ud800"])
    (part, whole) = encoder.encode_options((Text(" ans"),), ["", "wer"])
    assert list(whole) == encoder.tokenizer.encode(" answer")
    assert list(part) != list(whole)[: len(part)]  # so the empty option has a token of its own


def test_half_characters_across_segments_are_rendered_whole(encoder: PromptEncoder) -> None:
    ids = encoder.tokenizer.encode("日")
    middle = TokenIds.of(ids)
    assert encoder.render((middle[:1], middle[1:], Text("本"))) == "日本"
    assert encoder.render((middle[:1],)) in ("\ufffd", "日")
