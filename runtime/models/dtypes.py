"""Which number format the weights and the KV are kept in."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from ..protocol import InvalidRequestError

_NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_dtype(name: str, device: str) -> torch.dtype:
    """Return the dtype that `name` ("auto", "float32", "bfloat16") means on `device`."""
    if name == "auto":
        native = device != "cpu" or cpu_multiplies_bfloat16()
        return torch.bfloat16 if native else torch.float32
    if name not in _NAMES:
        raise InvalidRequestError(f"dtype must be auto, float32 or bfloat16, not {name!r}")
    return _NAMES[name]


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has bfloat16 products (AVX512-BF16, AMX, ARM BF16)."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return _arm_has_bfloat16()
    features: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    if features:
        return bool(features.get("avx512_bf16") or features.get("amx_bf16"))
    return _has_cpuinfo_flag("avx512_bf16", "amx_bf16")


def _arm_has_bfloat16() -> bool:
    return _has_cpuinfo_flag("bf16")


def _has_cpuinfo_flag(*flags: str) -> bool:
    """Look into Linux's list of CPU features; without one the answer is no."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return not set(text.split()).isdisjoint(flags)
