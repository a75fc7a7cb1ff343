"""Operations on tensors, each behind `ramet.kernels.ops`, the only door.

Importing this package loads nothing: `ops` brings torch.
"""
