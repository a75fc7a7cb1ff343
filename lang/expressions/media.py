"""Images and videos: `image`, `video`. No backend of this version can show one to a model."""

from __future__ import annotations

from os import PathLike, fspath

from ramet.runtime.protocol import InvalidRequestError, UnsupportedFeatureError

from .graph import Media


def image(expr: str | bytes | PathLike[str]) -> Media:
    """Return an image: a path or an address, or the bytes of the file.

    It can be part of an expression, but no backend of this version can show it to a model:
    appending it raises `UnsupportedFeatureError`, before any call is made.

    Raises:
        TypeError: something else than a path or bytes.

    Example:
        >>> ramet.image("cat.png").source
        'cat.png'
    """
    return Media("image", _source(expr))


def video(path: str | bytes | PathLike[str], num_frames: int) -> Media:
    """Return a video, of which the model sees `num_frames` pictures, at least 1.

    It can be part of an expression; appending it raises as that of an `image` does.

    Raises:
        TypeError: something else than a path or bytes.
        InvalidRequestError: `num_frames` is no integer of at least 1.

    Example:
        >>> ramet.video("cat.mp4", num_frames=8).num_frames
        8
    """
    if isinstance(num_frames, bool) or not isinstance(num_frames, int) or num_frames < 1:
        raise InvalidRequestError(
            f"num_frames must be an integer of at least 1, not {num_frames!r}"
        )
    return Media("video", _source(path), num_frames)


def refuse(node: Media) -> None:
    """Raise what appending an image or a video raises."""
    what = "an image" if node.kind == "image" else "a video"
    raise UnsupportedFeatureError(
        f"this backend cannot take {what}: text models run here. A vision endpoint behind "
        "ramet.OpenAI could; that backend comes with the HTTP server"
    )


def _source(value: object) -> str | bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (str, PathLike)):
        return str(fspath(value))
    raise TypeError(f"a path or bytes are wanted, not {value!r}")
