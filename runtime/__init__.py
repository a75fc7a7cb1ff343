"""The engine: radix cache, scheduler, models, sampling.

Importing this package loads nothing heavy: the protocol needs the standard library only, the
engine is imported from `ramet.runtime.engine` by whoever starts one.
"""
