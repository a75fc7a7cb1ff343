"""Named prefixes on disk, and engines that start with them."""

from __future__ import annotations

import logging
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ramet.runtime.cache.prefix_store import PrefixKey, PrefixStore, UInt8Array
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import (
    EngineError,
    Finished,
    GenerateRequest,
    InvalidRequestError,
    SamplingParams,
    Text,
)
from ramet.runtime.scheduling.kv_memory import KVMemory
from ramet.runtime.scheduling.saved_prefixes import SavedPrefixes
from ramet.runtime.step import Int32Array
from ramet.runtime.worker_client import WorkerEngine
from tests.models import write_model

from .scripted import ENCODER, Receiver, ScriptedRunner

KEY = PrefixKey("hash", "float32", "2 layers", "torch")
IDS = np.array([5, 6, 7], dtype=np.int32)
ROWS = np.arange(24, dtype=np.uint8).reshape(3, 8)
PREFIX = "The quick brown fox jumps over the lazy dog. " * 3


class Rows:
    """KV that is one row of bytes per slot."""

    kv_layout = "rows"
    kv_row_bytes = 8

    def __init__(self, num_slots: int) -> None:
        self.rows = np.zeros((num_slots + 1, 8), dtype=np.uint8)

    def read_kv(self, slots: Int32Array) -> UInt8Array:
        return self.rows[slots]

    def write_kv(self, slots: Int32Array, rows: UInt8Array) -> None:
        self.rows[slots] = rows


def saved_names(folder: Path, key: PrefixKey = KEY) -> list[str]:
    return [one.name for one in PrefixStore(folder, key).load()]


def test_a_saved_prefix_comes_back(tmp_path: Path) -> None:
    PrefixStore(tmp_path / "new", KEY).save("a.b-c_1", IDS, ROWS)
    (saved,) = PrefixStore(tmp_path / "new", KEY).load()
    assert saved.name == "a.b-c_1"
    assert saved.ids.tolist() == IDS.tolist()
    assert np.array_equal(saved.rows, ROWS)
    assert isinstance(saved.rows, np.memmap)


def test_the_same_name_is_replaced(tmp_path: Path) -> None:
    store = PrefixStore(tmp_path, KEY)
    store.save("a", IDS, ROWS)
    store.save("a", IDS[:1], ROWS[:1])
    assert [len(one.ids) for one in store.load()] == [1]


def test_leftovers_of_a_killed_process_go(tmp_path: Path) -> None:
    (tmp_path / ".saving-x").write_bytes(b"half")
    PrefixStore(tmp_path, KEY).save("a", IDS, ROWS)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "a.prefix"]


@pytest.mark.parametrize("name", ["", "a/b", "a" * 65, "ä", "a b", "a\n", 3])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="1 to 64 letters"):
        PrefixStore(tmp_path, KEY).save(name, IDS, ROWS)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=f"could not be saved in {tmp_path}/file"):
        PrefixStore(tmp_path / "file", KEY).save("a", IDS, ROWS)


@pytest.mark.parametrize("name", ["model_hash", "dtype", "layout", "arithmetic"])
def test_what_is_of_another_model_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    PrefixStore(tmp_path, KEY).save("a", IDS, ROWS)
    with caplog.at_level(logging.INFO, "ramet.engine"):
        assert saved_names(tmp_path, replace(KEY, **{name: "other"})) == []
    (record,) = caplog.records
    assert f"its {name} is" in record.getMessage()


@pytest.mark.parametrize("place", [0, 9, 13, 17, 30, 260, 4096, -1])
def test_one_changed_byte_leaves_a_file_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    path = PrefixStore(tmp_path, KEY).save("a", IDS, ROWS)
    PrefixStore(tmp_path, KEY).save("b", IDS, ROWS)
    data = bytearray(path.read_bytes())
    place = data.index(IDS.tobytes()) if place == 260 else place
    data[place] ^= 1
    path.write_bytes(data)
    assert saved_names(tmp_path) == ["b"]
    assert str(path) in caplog.text


@pytest.mark.parametrize("length", [0, 5, 30, 4100])
def test_a_file_that_was_cut_off_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    path = PrefixStore(tmp_path, KEY).save("a", IDS, ROWS)
    path.write_bytes(path.read_bytes()[:length])
    assert saved_names(tmp_path) == []
    assert str(path) in caplog.text


@pytest.mark.parametrize("header", [b"{", b"\xff", b"[]", b"{}"])
def test_a_header_that_is_none_is_left_out_though_its_checksum_fits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, header: bytes
) -> None:
    PrefixStore(tmp_path, KEY).save("b", IDS, ROWS)
    start = struct.pack("<8sIII", b"ramet-kv", 1, len(header), zlib.crc32(header))
    (tmp_path / "a.prefix").write_bytes(start + header)
    with caplog.at_level(logging.INFO, "ramet.engine"):
        assert saved_names(tmp_path) == ["b"]
    assert "a.prefix" in caplog.text


def test_loading_takes_half_the_pool_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = PrefixStore(tmp_path, KEY)
    for name, ids in {"long": [1, 2, 3, 4], "other": [8, 9], "start": [1, 2], "more": [7]}.items():
        store.save(name, np.array(ids, dtype=np.int32), np.full((len(ids), 8), ids[0], np.uint8))
    memory, kv = KVMemory(10), Rows(10)
    assert SavedPrefixes(store, kv, memory).load() == 5
    assert memory.pool.num_free == memory.tree.num_evictable == 5
    assert [r.getMessage()[:25] for r in caplog.records] == ["the saved prefix other is"]
    assert (kv.rows[memory.slots_of(np.array([7], dtype=np.int32))] == 7).all()
    assert (kv.rows[memory.slots_of(np.array([1, 2, 3, 4], dtype=np.int32))] == 1).all()


def test_an_engine_without_a_cache_dir_saves_nothing() -> None:
    engine = Engine(ScriptedRunner(100), ENCODER, EngineConfig(), model_info={"context_length": 64})
    with pytest.raises(InvalidRequestError, match="start with cache_dir"):
        engine.save_prefix("a", (Text("abc"),))
    engine.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def config(folder: Path, **options: object) -> EngineConfig:
    options = {"dtype": "float32", "max_total_tokens": 1000, **options}
    return EngineConfig(model=str(folder), **options)  # type: ignore[arg-type]


def ask(engine: Engine | WorkerEngine, salt: str = "") -> Finished:
    receiver = Receiver()
    engine.submit(
        GenerateRequest(
            id="a",
            prompt=(Text(PREFIX), Text("What then?")),
            sampling=SamplingParams(max_new_tokens=20),
            seed=3,
            cache_salt=salt,
        ),
        receiver,
    )
    receiver.wait("a", timeout=60)
    engine.close()
    return receiver.finished("a")


def test_the_next_engine_starts_with_what_was_saved(folder: Path, tmp_path: Path) -> None:
    expected = ask(Engine.from_config(config(folder, enable_radix_cache=False)))
    first = Engine.from_config(config(folder, cache_dir=str(tmp_path)))
    num_saved = first.save_prefix("fox", (Text(PREFIX),))
    first.close()
    finished = ask(Engine.from_config(config(folder, cache_dir=str(tmp_path))))
    assert num_saved - 1 <= finished.usage.cached_tokens <= num_saved
    assert finished.usage.computed_tokens < expected.usage.computed_tokens
    assert finished.sample == expected.sample
    salted = ask(Engine.from_config(config(folder, cache_dir=str(tmp_path))), salt="a")
    assert salted.usage.cached_tokens == 0


def test_prefixes_of_equal_and_of_shorter_text_start_together(folder: Path, tmp_path: Path) -> None:
    first = Engine.from_config(config(folder, dtype="bfloat16", cache_dir=str(tmp_path)))
    for name, text in (("long", PREFIX), ("again", PREFIX), ("short", PREFIX[:20])):
        first.save_prefix(name, (Text(text),))
    first.close()
    second = Engine.from_config(config(folder, dtype="bfloat16", cache_dir=str(tmp_path)))
    assert ask(second).usage.cached_tokens > 20


def test_an_engine_of_another_dtype_leaves_it(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Engine.from_config(config(folder, cache_dir=str(tmp_path)))
    first.save_prefix("fox", (Text(PREFIX),))
    first.close()
    with caplog.at_level(logging.INFO, "ramet.engine"):
        other = Engine.from_config(config(folder, cache_dir=str(tmp_path), dtype="bfloat16"))
    assert ask(other).usage.cached_tokens == 0
    assert "fox.prefix is skipped: its dtype is float32, not bfloat16" in caplog.text


def test_a_worker_saves_and_knows_its_model(folder: Path, tmp_path: Path) -> None:
    worker = WorkerEngine(config(folder, num_threads=1, cache_dir=str(tmp_path)))
    num_saved = worker.save_prefix("fox", (Text(PREFIX),))
    with pytest.raises(InvalidRequestError, match="1 to 64 letters"):
        worker.save_prefix("a/b", (Text(PREFIX),))
    info = worker.info()
    worker.close()
    engine = Engine.from_config(config(folder, cache_dir=str(tmp_path)))
    assert engine.info()["model_hash"] == info["model_hash"]
    assert num_saved - 1 <= ask(engine).usage.cached_tokens <= num_saved


def test_a_prefix_that_does_not_stay_is_an_error(folder: Path, tmp_path: Path) -> None:
    engine = Engine.from_config(
        config(folder, cache_dir=str(tmp_path), max_total_tokens=100, eviction_watermark=0.5)
    )
    prompt = (Text(PREFIX * 2),)
    assert engine.count_tokens(prompt) > 50  # after its step half the pool is free again
    with pytest.raises(EngineError, match="did not stay in the cache"):
        engine.save_prefix("fox", prompt)
    engine.close()
