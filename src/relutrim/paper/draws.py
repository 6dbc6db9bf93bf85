"""Random numbers that depend on a seed and on what they are for, and on nothing else.

No generator is carried from one epoch to the next: each gets one of its own, made from the seed, the purpose
and the epoch. So a run that goes on after an interruption, a network that is trained beside others, and
another device all see the same numbers; they are always drawn on the CPU.
"""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, purpose: str, epoch: int = 0) -> torch.Generator:
    """A generator for one purpose."""
    digest = hashlib.sha256(f"relutrim/{purpose}/{seed}/{epoch}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
