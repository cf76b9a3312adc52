"""The gate before any speed: how far an engine's logits are from a float32 reference's.

The reference is the same model with the same (dequantised) weights in float32. An engine passes
when it would choose the reference's token wherever the choice is not a toss-up, and when on
average its distributions are as close as the limits below say. They lie well under what the
conventional bfloat16 path shows on SmolLM2-135M (mean KL 1.4e-3, changed choices up to a margin
of 0.17), so passing means: no worse than native bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MARGIN_LIMIT = 0.05  # logits: a choice between two tokens closer than this is a toss-up
MEAN_KL_LIMIT = 5e-4  # nats


@dataclass(frozen=True)
class Quality:
    """`changed_margin`: the reference's top-2 margin where the choice changed; the largest."""

    positions: int
    changed: int
    changed_margin: float
    mean_kl: float

    @property
    def passed(self) -> bool:
        """Whether both limits hold."""
        return self.changed_margin <= MARGIN_LIMIT and self.mean_kl <= MEAN_KL_LIMIT


def quality(reference: torch.Tensor, logits: torch.Tensor) -> Quality:
    """Compare teacher-forced logits, both float32 [positions, vocab]."""
    expected, actual = reference.log_softmax(-1), logits.log_softmax(-1)
    divergence = (expected.exp() * (expected - actual)).sum(-1)
    top = reference.topk(2).values
    changed = reference.argmax(-1) != logits.argmax(-1)
    margins = (top[:, 0] - top[:, 1])[changed]
    return Quality(
        positions=len(reference),
        changed=int(changed.sum()),
        changed_margin=float(margins.max()) if len(margins) else 0.0,
        mean_kl=float(divergence.mean()),
    )
