"""Kernels with one fault each, and some that only look different: a kernel folder as a user writes one."""

from . import layers  # noqa: TID252

__all__ = ["layers"]
