"""What changes a logit row before it is drawn from: penalties, bias and banned ids.

Repetition as Keskar et al., *CTRL* (2019), over prompt and output; frequency and presence as the
OpenAI API has them, over the output only. The formulas, their order and float32 are those of
transformers and vLLM.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from .protocol import SamplingParams
from .step import Draw, Int32Array


def changes_logits(draw: Draw) -> bool:
    """Return whether `change_logits` could do anything."""
    sampling = draw.sampling
    return bool(draw.banned or sampling.logit_bias or sampling.has_penalties)


def change_logits(row: torch.Tensor, draw: Draw) -> None:
    """Change a row in place: repetition, frequency and presence penalty, bias, banned ids.

    Raises:
        ValueError: the draw has penalties and no history.
    """
    sampling = draw.sampling
    if sampling.has_penalties:
        if draw.history is None:
            raise ValueError("a draw with penalties needs the history of its sequence")
        _penalize(row, sampling, draw.history, draw.position)
    if sampling.logit_bias:
        ids, values = zip(*sampling.logit_bias, strict=True)
        row.index_add_(0, _index(ids, row), torch.tensor(values, dtype=row.dtype).to(row.device))
    if draw.banned:
        row[_index([token for token in draw.banned if token < len(row)], row)] = -math.inf


def _penalize(
    row: torch.Tensor, sampling: SamplingParams, history: Int32Array, num_outputs: int
) -> None:
    vocab = len(row)
    known = history[history < vocab]  # a prompt may hold ids that cannot be drawn
    if sampling.repetition_penalty != 1.0:
        is_known = np.zeros(vocab, np.bool_)
        is_known[known] = True
        ids = _index(np.flatnonzero(is_known), row)
        logits = row[ids]
        penalty = sampling.repetition_penalty
        row[ids] = torch.where(logits > 0, logits / penalty, logits * penalty)
    if num_outputs and (sampling.frequency_penalty or sampling.presence_penalty):
        outputs = history[-num_outputs:]
        counts = np.bincount(outputs[outputs < vocab], minlength=vocab)
        used = np.flatnonzero(counts)
        ids = _index(used, row)
        times = torch.from_numpy(counts[used]).to(row.device, row.dtype)
        # One after the other and not as a sum: so are the bits those of the definition.
        row[ids] = row[ids] - sampling.frequency_penalty * times - sampling.presence_penalty


def _index(ids: npt.ArrayLike, row: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.asarray(ids, dtype=np.int64)).to(row.device)
