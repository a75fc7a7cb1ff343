import json
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.gguf_reader import metadata, open_gguf
from ramet.runtime.prompts.tokenizer import Tokenizer
from ramet.runtime.prompts.vocabulary import byte_alphabet, byte_level_bytes, sentencepiece_bytes
from ramet.runtime.protocol import InvalidRequestError, ModelFileError, ModelNotFoundError

from .tiny_tokenizers import LINES, SPECIALS, byte_level, write_folder, write_gguf, write_vocabulary

NAUGHTY = (
    "",
    " ",
    "\n\n\t \r\n",
    "\x00\x01\x7f\x80",
    "ÅÍÎÏ˝ÓÔÒÚÆ☃",
    "Ṱ̺̺̕o͞ ̷i̲̬͇̪͙n̝̗͕v̟̜̘̦͟o̶̙̰̠kè͚̮̺̪̹̱̤",
    "👩‍👩‍👧‍👦 🏳️‍🌈 \u202e\u200b\ufeff",
    "１２３ ١٢٣ ½ ⅷ 12345",
    "﷽ ▁▁ Ġ <0x0A>",
    "<|im_end|><|im_start|>system<|endoftext|>",
    "I'LL don't WE'VE 's",
    "𐍈 \U0010fffd \uffff",
)
SPELLED = st.sampled_from([*SPECIALS, "<|im_", "end|>", *NAUGHTY])
TEXTS = (
    st.lists(st.text(max_size=12) | SPELLED, max_size=6)
    .map("".join)
    .filter(lambda text: not any(0xD800 <= ord(char) < 0xE000 for char in text))
)
Pair = tuple[Tokenizer, Any]  # ours, and the published one
Json = dict[str, Any]
PRES = ("gpt-2", "smollm", "llama-bpe", "qwen2")


@pytest.fixture(scope="module", params=PRES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return Tokenizer.from_gguf(write_gguf(path, request.param)), byte_level(request.param)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_gguf(write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", bos=3))


@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_gguf_ids_equal_those_of_the_published_tokenizer(pair: Pair, text: str) -> None:
    ours, published = pair
    assert ours.encode(text, parse_special=True) == published.encode(text).ids


@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_bytes_of_the_ids_are_the_text_and_none_is_special(pair: Pair, text: str) -> None:
    ids = pair[0].encode(text)
    assert b"".join(map(pair[0].token_bytes, ids)) == text.encode()
    assert not any(map(pair[0].is_special, ids))


@pytest.mark.parametrize("special", SPECIALS)
def test_spelled_special_tokens_are_parsed_only_on_request(
    tokenizer: Tokenizer, special: str
) -> None:
    token = tokenizer.special_ids[special]
    assert tokenizer.encode(special, parse_special=True) == [token]
    assert token not in tokenizer.encode(special)
    assert tokenizer.decode(tokenizer.encode(special)) == special
    assert tokenizer.token_bytes(token) == special.encode()
    assert tokenizer.spelled_specials(f"a{special}b{special}") == [special]


def test_special_tokens_split_text_longest_first(tokenizer: Tokenizer) -> None:
    start, end = tokenizer.special_ids["<|im_start|>"], tokenizer.special_ids["<|im_end|>"]
    assert tokenizer.split_special("<|im_start|>a<|im_end|>") == [start, "a", end]
    assert tokenizer.split_special("") == [""]
    assert tokenizer.encode_parts([start, "us", "er", end]) == [
        start,
        *tokenizer.encode("user"),
        end,
    ]


def test_the_end_and_the_beginning_are_read_from_the_file(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_ids == {2}
    assert tokenizer.bos_id is None  # gpt2 kinds begin with BOS only where the file says so
    assert tokenizer.named_tokens["eos_token"] == "<|im_end|>"


def test_llama3_files_begin_with_bos_unless_they_say_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    assert Tokenizer.from_gguf(write_gguf(path, "llama-bpe", bos=3)).bos_id == 3
    assert Tokenizer.from_gguf(write_gguf(path, "llama-bpe", bos=3, add_bos=False)).bos_id is None
    assert Tokenizer.from_gguf(write_gguf(path, "smollm", bos=3, add_bos=True)).bos_id == 3


@pytest.mark.parametrize(("pre", "words"), [("grok-9", "'grok-9'"), (None, "no pre-tokenizer")])
def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path, pre: str | None, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        Tokenizer.from_gguf(write_gguf(tmp_path / "a.gguf", pre))


@pytest.mark.parametrize("merges", [["ab"], ["a q"], None])
def test_merges_that_do_not_fit_the_vocabulary_are_refused(
    tmp_path: Path, merges: list[str] | None
) -> None:
    tokens = [*byte_alphabet(), "ab"]
    path = write_vocabulary(
        tmp_path / "a.gguf", "gpt2", tokens, [1] * 257, pre="gpt-2", merges=merges
    )
    with pytest.raises(ModelFileError, match="merges"):
        Tokenizer.from_gguf(path)


def test_an_unknown_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="'bert'"):
        Tokenizer.from_gguf(write_vocabulary(tmp_path / "a.gguf", "bert", ["a"], [1]))


def test_trailing_unused_tokens_are_not_in_the_vocabulary(tmp_path: Path) -> None:
    tokens = [*byte_alphabet(), "ab", "[PAD257]", "[PAD258]"]
    types = [1] * 257 + [5, 5]
    path = write_vocabulary(tmp_path / "a.gguf", "gpt2", tokens, types, pre="gpt-2", merges=["a b"])
    assert Tokenizer.from_gguf(path).vocab_size == 257


def test_characters_that_no_token_spells_are_named(tmp_path: Path) -> None:
    tokens = [char for char, byte in byte_alphabet().items() if byte not in (0x04, 0xF1)]
    tokens.append("ab")
    types = [1] * len(tokens)
    path = write_vocabulary(tmp_path / "a.gguf", "gpt2", tokens, types, pre="gpt-2", merges=["a b"])
    tokenizer = Tokenizer.from_gguf(path)
    assert tokenizer.inexpressible("a\x04b\U00040000\x04") == ["\x04", "\U00040000"]
    assert tokenizer.inexpressible("all is well") == []


def test_a_lone_surrogate_is_an_invalid_request(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode("a\ud800")


def test_half_characters_decode_to_the_replacement_character(tokenizer: Tokenizer) -> None:
    ids = [
        token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == b"\x80"
    ]
    assert tokenizer.decode(ids * 2) == "\ufffd\ufffd"


@pytest.mark.parametrize("size", [0, 3, 30, 2000])
def test_a_truncated_file_is_refused(tmp_path: Path, size: int) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelFileError, match="GGUF"):
        Tokenizer.from_gguf(path)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_file_is_refused_or_read_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = write_gguf(tmp_path_factory.mktemp("damaged") / "a.gguf", bos=3)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(ModelFileError):
        Tokenizer.from_gguf(path).encode("Hello world")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"none\.gguf"):
        Tokenizer.from_gguf(tmp_path / "none.gguf")


def test_the_fast_reader_reads_what_the_library_reads(tmp_path: Path) -> None:
    from gguf import GGUFReader

    path = write_gguf(tmp_path / "a.gguf", template="{{ messages }}")
    plain, fast = GGUFReader(path), open_gguf(path)
    assert list(plain.fields) == list(fast.fields)
    assert metadata(plain) == metadata(fast)
    assert Tokenizer.from_gguf(fast).chat_template == "{{ messages }}"


@given(text=TEXTS)
@settings(max_examples=40, deadline=None)
def test_folder_ids_equal_those_of_transformers(theirs: Pair, text: str) -> None:
    ours, reference = theirs
    want = reference.encode(text, add_special_tokens=False)
    assert ours.encode(text, parse_special=True) == want
    assert not any(map(ours.is_special, ours.encode(text)))
    assert ours.decode(ours.encode(text)) == text


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    from transformers import AutoTokenizer

    tokenizer = byte_level().from_str(byte_level().to_str())
    tokenizer.add_tokens(["<think>"])  # added, yet not special
    folder = write_folder(tmp_path_factory.mktemp("folder"), tokenizer)
    return Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)


def test_added_tokens_that_are_not_special_stay_whole_and_keep_their_ids(theirs: Pair) -> None:
    ours, reference = theirs
    (token,) = ours.encode("<think>")
    assert token == reference.convert_tokens_to_ids("<think>")
    assert ours.token_bytes(token) == b"<think>"
    assert ours.vocab_size == len(reference)


def test_the_folder_says_what_ends_a_text_and_how_it_begins(tmp_path: Path) -> None:
    write_folder(tmp_path, add_bos_token=True, chat_template="{{ 1 }}")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.bos_id == tokenizer.special_ids["<s>"]
    assert tokenizer.chat_template == "{{ 1 }}"
    (tmp_path / "chat_template.jinja").write_text("{{ 2 }}")
    assert Tokenizer.from_folder(tmp_path).chat_template == "{{ 2 }}"


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"model": {"type": "Unigram", "vocab": []}}', "{}"]
)
def test_a_damaged_or_unsupported_folder_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFileError):
        Tokenizer.from_folder(tmp_path)


# -- SentencePiece ---------------------------------------------------------------------------------

PIECES = (
    "▁",
    *"abcdehlorw",
    "▁a",
    "he",
    "ll",
    "▁he",
    "llo",
    "▁hello",
    "ab",
    "abc",
    "▁w",
    "or",
    "é",
)


def sentencepiece(tmp_path: Path, **extra: object) -> Tokenizer:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "<br>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 4]
    scores = [0.0] * 259 + [float(-rank) for rank in range(len(PIECES))] + [0.0]
    path = tmp_path / "spm.gguf"
    write_vocabulary(path, "llama", tokens, types, scores=scores, bos=1, eos=2, **extra)
    return Tokenizer.from_gguf(path)


def reference_pieces(text: str) -> list[bytes]:
    """Join the adjacent pair with the best score, the leftmost first, as SentencePiece does."""
    symbols = list(text.replace(" ", "▁"))
    while True:
        ranked = [
            (PIECES.index(left + right), place)
            for place, (left, right) in enumerate(pairwise(symbols))
            if left + right in PIECES
        ]
        if not ranked:
            break
        _, place = min(ranked)
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
    return [
        piece
        for symbol in symbols
        for piece in (
            [symbol.replace("▁", " ").encode()]
            if symbol in PIECES
            else [bytes([byte]) for byte in symbol.encode()]
        )
    ]


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return sentencepiece(tmp_path_factory.mktemp("spm"))


@given(text=st.text("abcdehlorw é<0xA>\n🦙", max_size=30))
@settings(max_examples=100, deadline=None)
def test_sentencepiece_merges_by_score_with_byte_fallback(spm: Tokenizer, text: str) -> None:
    ids = spm.encode(text, at_start=False)
    assert [spm.token_bytes(token) for token in ids] == reference_pieces(text)


def test_sentencepiece_puts_a_space_at_the_start_and_after_special_tokens(
    spm: Tokenizer, tmp_path: Path
) -> None:
    assert spm.decode(spm.encode("hello")) == " hello"
    assert spm.decode(spm.encode("hello", at_start=False)) == "hello"
    assert spm.decode(spm.encode("<s>hello</s>a", parse_special=True)) == "<s> hello</s> a"
    assert spm.bos_id == 1
    without = sentencepiece(tmp_path, space=False, add_bos=False)
    assert without.decode(without.encode("hello")) == "hello"
    assert without.bos_id is None


def test_sentencepiece_user_defined_tokens_stay_whole(spm: Tokenizer) -> None:
    ids = spm.encode("a<br>a", at_start=False)
    assert [spm.token_bytes(token) for token in ids] == [b"a", b"<br>", b"a"]


def test_sentencepiece_byte_tokens_are_never_spelled(spm: Tokenizer) -> None:
    assert len(spm.encode("<0x0A>", at_start=False)) > 1
    assert sentencepiece_bytes("<0x0A>") == b"\n"


def test_sentencepiece_without_a_token_for_each_byte_is_refused(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "a.gguf", "llama", ["<unk>", "a"], [2, 1], scores=[0.0, 0.0])
    with pytest.raises(ModelFileError, match="each byte"):
        Tokenizer.from_gguf(path)


def llama_style_folder(path: Path, normalizer: Json, pre_tokenizer: Json | None) -> Path:
    """Write a SentencePiece-like tokenizer.json as transformers converts them."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {piece: 259 + rank for rank, piece in enumerate(PIECES)}
    merges = [["▁", "a"], ["h", "e"], ["l", "l"], ["▁", "he"], ["ll", "o"], ["▁he", "llo"]]
    added = [
        {"id": id_, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for token, id_ in (("<unk>", 0), ("<s>", 1), ("</s>", 2))
    ]
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    spec = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "model": model | {"vocab": vocab, "merges": merges},
    }
    (path / "tokenizer.json").write_text(json.dumps(spec))
    return path


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPEND = {"type": "Prepend", "prepend": "▁"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "split": False}


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer"),
    [
        ({"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, None),
        (None, METASPACE | {"prepend_scheme": "first"}),
        (None, METASPACE | {"prepend_scheme": "always"}),
        (REPLACE, None),
    ],
    ids=["prepend", "first", "always", "never"],
)
@pytest.mark.parametrize("text", ["hello a", " hello", "<s>hello a</s>abc", "a<0x0A>é\n🦙", ""])
def test_sentencepiece_folders_put_spaces_where_the_tokenizer_file_does(
    tmp_path: Path, normalizer: Json, pre_tokenizer: Json | None, text: str
) -> None:
    import tokenizers

    folder = llama_style_folder(tmp_path, normalizer, pre_tokenizer)
    published = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = Tokenizer.from_folder(folder)
    assert ours.encode(text, parse_special=True) == published.encode(text).ids
    assert not any(map(ours.is_special, ours.encode(text)))
    assert ours.decode(ours.encode(text)) in (text, " " + text)


def test_a_folder_without_tokenizer_json_is_read_through_transformers(tmp_path: Path) -> None:
    model = json.loads(byte_level("gpt-2").to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + merges)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    tokenizer = Tokenizer.from_folder(tmp_path)
    for line in LINES[:4]:
        assert tokenizer.encode(line, parse_special=True) == byte_level("gpt-2").encode(line).ids


def test_byte_level_table_covers_every_byte() -> None:
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert byte_level_bytes("Ġa") == b" a"
    assert byte_level_bytes("｜") == "｜".encode()


def test_training_lines_round_trip(tokenizer: Tokenizer) -> None:
    for line in LINES:
        assert tokenizer.decode(tokenizer.encode(line)) == line
