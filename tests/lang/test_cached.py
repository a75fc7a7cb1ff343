"""`ramet.Cached`: what is remembered across runs, and what is asked again."""

import threading
from pathlib import Path

import pytest

import ramet


@ramet.function
def ask(s: ramet.ProgramState, question: str) -> None:
    s += ramet.user(question)
    s += ramet.assistant(ramet.gen("answer"))


@ramet.function
def choose(s: ramet.ProgramState, options: list[str]) -> None:
    s += "Pick: "
    s += ramet.select("pick", options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.sqlite"


def test_an_answer_at_temperature_0_is_remembered_across_runs(path: Path) -> None:
    fake = ramet.Fake({"answer": "Paris"})
    with ramet.Cached(fake, path) as backend:
        first = ask("Capital of France?", backend=backend, temperature=0)
    with ramet.Cached(fake, path) as backend:
        second = ask("Capital of France?", backend=backend, temperature=0)
        assert backend.info()["results"] == 1
    assert second["answer"] == first["answer"] == "Paris"
    assert second.text() == first.text()
    assert len(fake.requests) == 1


def test_a_remembered_answer_says_so_and_computed_nothing(path: Path) -> None:
    with ramet.Cached(ramet.Fake({"answer": "Paris"}), path) as backend:
        first = ask("Capital?", backend=backend, temperature=0)
        second = ask("Capital?", backend=backend, temperature=0)
    assert first.get_meta_info("answer")["cached_result"] is False
    assert second.get_meta_info("answer")["cached_result"] is True
    assert second.usage.computed_tokens == 0
    assert second.usage.prompt_tokens == first.usage.prompt_tokens


def test_a_gen_with_a_random_seed_is_asked_again(path: Path) -> None:
    fake = ramet.Fake({"answer": "Paris"})
    with ramet.Cached(fake, path) as backend:
        for _ in range(2):
            ask("Capital?", backend=backend)
        assert backend.info()["results"] == 0
    assert len(fake.requests) == 2


def test_a_gen_with_a_seed_that_was_given_is_remembered(path: Path) -> None:
    fake = ramet.Fake({"answer": "Paris"})
    with ramet.Cached(fake, path) as backend:
        for seed in (1, 1, 2):
            ask("Capital?", backend=backend, seed=seed)
        rows = [{"question": "a"}, {"question": "b"}]
        for _ in range(2):
            ask.run_batch(rows, backend=backend, seed=5)
        ask.run_batch(rows, backend=backend)
    assert len(fake.requests) == 2 + 2 + 2


def test_a_seed_of_the_gen_itself_counts_as_given(path: Path) -> None:
    fake = ramet.Fake({"answer": "Paris"})

    @ramet.function
    def seeded(s: ramet.ProgramState) -> None:
        s += "x" + ramet.gen("answer", seed=7)

    with ramet.Cached(fake, path) as backend:
        for _ in range(2):
            seeded(backend=backend)
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"question": "Other?"},
        {"max_tokens": 9},
        {"stop": "x"},
        {"return_logprob": True},
        {"cache_salt": "tenant"},
    ],
    ids=str,
)
def test_another_request_is_asked(path: Path, change: dict[str, object]) -> None:
    fake = ramet.Fake({"answer": "Paris"})
    with ramet.Cached(fake, path) as backend:
        for options in ({}, change):
            ask(**{"question": "Capital?", "backend": backend, "temperature": 0, **options})
    assert len(fake.requests) == 2


def test_another_model_is_asked(path: Path) -> None:
    class Named(ramet.Fake):
        def info(self) -> dict[str, object]:
            return {**super().info(), "model": "another"}

    fakes = [ramet.Fake({"answer": "a"}), Named({"answer": "b"})]
    answers = []
    for fake in fakes:
        with ramet.Cached(fake, path) as backend:
            answers.append(ask("q", backend=backend, temperature=0)["answer"])
    assert answers == ["a", "b"]


def test_how_a_text_is_cut_does_not_matter(path: Path) -> None:
    fake = ramet.Fake({"v": "x"})

    @ramet.function
    def cut(s: ramet.ProgramState, parts: list[str]) -> None:
        for part in parts:
            s += part
        s += ramet.gen("v", temperature=0)

    with ramet.Cached(fake, path) as backend:
        for parts in (["abc"], ["a", "bc"], ["ab", "c"]):
            cut(parts, backend=backend)
    assert len(fake.requests) == 1


def test_selects_are_remembered_with_their_evidence(path: Path) -> None:
    fake = ramet.Fake({"pick": "no"})
    with ramet.Cached(fake, path) as backend:
        first, second = (choose(["yes", "no"], backend=backend) for _ in range(2))
        other = choose(["no", "yes"], backend=backend)
    assert first["pick"] == second["pick"] == other["pick"] == "no"
    assert first.get_meta_info("pick")["choices"] == second.get_meta_info("pick")["choices"]
    assert len(fake.requests) == 2


def test_failures_are_not_remembered(path: Path) -> None:
    with ramet.Cached(ramet.Fake({"answer": RuntimeError("no luck")}), path) as backend:
        state = ask("q", backend=backend, temperature=0, on_error="return")
        assert isinstance(state.error(), ramet.errors.GenerationError)
        assert backend.info()["results"] == 0
    with ramet.Cached(ramet.Fake({"answer": "fine"}), path) as backend:
        assert ask("q", backend=backend, temperature=0)["answer"] == "fine"


def test_a_remembered_answer_streams(path: Path) -> None:
    fake = ramet.Fake({"answer": "one two three"})
    with ramet.Cached(fake, path) as backend:
        texts = [
            "".join(ask.stream("q", backend=backend, temperature=0).text_iter("answer"))
            for _ in range(2)
        ]
    assert texts == ["one two three"] * 2
    assert len(fake.requests) == 1


def test_many_threads_and_two_objects_share_a_file(path: Path) -> None:
    fake = ramet.Fake({"answer": lambda prompt, name: prompt[-30:]})
    rows = [{"question": f"question {index % 10}"} for index in range(60)]
    with ramet.Cached(fake, path) as one, ramet.Cached(fake, path) as two:
        results: dict[str, list[str]] = {}

        def work(name: str, backend: ramet.Backend) -> None:
            states = ask.run_batch(rows, backend=backend, temperature=0)
            results[name] = [state["answer"] for state in states]

        threads = [
            threading.Thread(target=work, args=(str(index), backend))
            for index, backend in enumerate((one, two))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert results["0"] == results["1"]
    with ramet.Cached(fake, path) as backend:
        assert backend.info()["results"] == 10


def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.write_text("this is no database, but a text file of some length" * 20)
    with pytest.raises(OSError, match=r"results\.sqlite.*cannot be used"):
        ramet.Cached(ramet.Fake({}), path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        ramet.Cached(ramet.Fake({}), tmp_path / "nowhere" / "x.sqlite")


def test_a_backend_is_needed(path: Path) -> None:
    with pytest.raises(TypeError, match="needs a backend"):
        ramet.Cached("model", path)  # type: ignore[arg-type]


def test_after_close_a_request_fails_clearly(path: Path) -> None:
    backend = ramet.Cached(ramet.Fake({"answer": "x"}), path)
    backend.close()
    backend.close()
    with pytest.raises(ramet.errors.GenerationError, match="closed"):
        ask("q", backend=backend, temperature=0)


def test_a_file_that_was_damaged_meanwhile_is_named(path: Path) -> None:
    fake = ramet.Fake({"answer": "x" * 3000})
    with ramet.Cached(fake, path) as backend:
        for number in range(20):
            ask(str(number), backend=backend, temperature=0)
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with (
        ramet.Cached(fake, path) as backend,
        pytest.raises(ramet.errors.GenerationError, match=path.name),
    ):
        ask("1", backend=backend, temperature=0)


def test_samples_and_logprobs_are_remembered(path: Path) -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += "Q" + ramet.gen("x", n=2, return_logprob=True, logprob_start_len=0)

    fake = ramet.Fake({"x": ["a", "b"]})
    with ramet.Cached(fake, path) as backend:
        infos = []
        for _ in range(2):
            state = program(backend=backend, seed=3)
            assert state["x"] == ["a", "b"]
            infos.append(state.get_meta_info("x"))
    assert len(fake.requests) == 1
    for name in ("samples", "input_token_logprobs", "output_token_logprobs"):
        assert infos[0][name] == infos[1][name]
