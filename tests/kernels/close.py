"""One measure of closeness for every kernel: relative RMS error against a reference."""

from __future__ import annotations

import torch


def assert_close(name: str, expected: torch.Tensor, actual: torch.Tensor, ratio: float) -> None:
    """Fail unless RMS(actual - expected) <= ratio * RMS(expected) and everything is finite."""
    expected, actual = expected.double(), actual.double()
    assert expected.shape == actual.shape, f"{name}: {tuple(actual.shape)}"
    assert actual.isfinite().all(), f"{name}: not finite"
    error = (actual - expected).square().mean().sqrt()
    scale = expected.square().mean().sqrt()
    assert error <= ratio * scale, f"{name}: relative RMS error {error / scale:.2e} > {ratio:.0e}"
