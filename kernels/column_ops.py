"""A pass of several tokens as kernels launched in order: verification of drafts.

The layers for every column (kernels/column_layers.py); then every column's token is drawn,
compared with what was drafted, and the next tokens are drafted. All state stays on the device: a
pass can be launched before the one before it has ended.
"""

from __future__ import annotations

import torch

from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams
from kernels import draft_kernels as fk
from kernels import draw_kernels as draw
from kernels.column_layers import ColumnLayers
from kernels.filters import NO_FILTERS, SCORES, Filtered, Filters, draw_filtered
from kernels.ops import RING
from kernels.tuning import EARLY, Tuning, power_of_two

_SPARE = 16  # entries of a history beyond its positions, which passes past the end may name


class ColumnKernels(ColumnLayers):
    """The kernels of `model` for passes of up to `widest` tokens, 2 to 8; 1 for a draft model.

    With `ngram` each pass drafts for the next; else another model does, see `draft_with`.
    `passes`: the ring that passes publish to, int64 [RING, ENTRY], pinned where there is a GPU; it
    and what lies on the device between passes are described in kernels/draft_kernels.py.
    """

    def __init__(
        self,
        model: Model,
        tuning: Tuning,
        dependent: bool = False,
        widest: int = 1,
        ngram: bool = False,
    ) -> None:
        super().__init__(model, tuning, dependent, power_of_two(widest))
        device, many = model.device, (self.columns, self.blocks)
        self.widest, self.ngram = widest, ngram

        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.bests, self.tops, self.exp_maxes, self.exp_sums = (
            torch.zeros(many, device=device) for _ in range(4)
        )
        self.best_ids = ints(*many)
        digits = draw.DIGITS.value
        self.many_lows, self.many_floors = (ints(self.columns, draw.PASSES.value) for _ in range(2))
        self.many_above = torch.zeros((self.columns, 2, self.blocks, digits), device=device)
        self.many_mass = torch.zeros((self.columns, 2, self.blocks), device=device)
        self.history = ints(model.config.max_positions + _SPARE)
        shape = (RING, fk.ENTRY.value)
        self.passes = torch.zeros(shape, dtype=torch.int64, pin_memory=self.on_gpu)

    def begin(self, cache: KVCache, token: int, params: SamplingParams) -> None:
        """Write a reply's state as `bind` does, and what drafts need; the first are drafted."""
        self.bind(cache, token, params)
        context = torch.tensor([*cache.token_ids, token], dtype=torch.int32)
        self.history[: len(context)] = context.to(self.history.device)
        self.all_seen[1:] = self.all_seen[:1]
        c = self.model.config
        fk.begin_kernel[(1,)](
            self.model.weights.embed, self.control, self.x, self.all_seen, self.history,
            self.drafts, N=c.vocab, K=c.hidden, BLOCK_K=power_of_two(c.hidden),
            COLUMNS=self.columns, MOST_DRAFTS=self.widest - 1, NGRAM=self.ngram, num_warps=8,
        )  # fmt: skip

    def verify(self, width: int, filters: Filters = NO_FILTERS) -> None:
        """Launch one pass of `width` tokens, drafts included as far as there are; 1 feeds none."""
        if width == 1:
            self._one_column(filters)
            return
        columns = power_of_two(width)
        self.layers(columns)
        self._score(columns)
        if filters.any:
            self._filter_all(columns, filters)
        self._settle(width, self.bests, self.best_ids, self.exp_maxes, self.exp_sums)

    def draft_with(self, draft: ColumnKernels, width: int, filters: Filters) -> None:
        """Launch `draft`'s steps from this model's last token: `width` - 1 drafts.

        One more step than that, so that its cache holds all of them, whatever is accepted.
        """
        c, d = self.model.config, draft.model.config
        self._launch(
            fk.hand_kernel, self.blocks, 4, EARLY,
            self.control, self.seen, draft.control, draft.seen, draft.model.weights.embed, draft.x,
            N=c.vocab, BLOCK=SCORES, K=d.hidden, BLOCK_K=power_of_two(d.hidden),
        )  # fmt: skip
        for _ in range(width):
            draft.detach()
            draft.verify(1, filters)
        self._launch(
            fk.adopt_kernel, 1, 1, EARLY,
            self.control, self.all_seen, self.drafts, draft.history, width - 1,
            COLUMNS=self.columns, N=c.vocab,
        )  # fmt: skip

    def _one_column(self, filters: Filters) -> None:
        """The step of `StepKernels.step`, settled as a pass."""
        best, best_id = self._candidates(filters)
        self._settle(1, best[None], best_id[None], self.exp_max[None], self.exp_sum[None])

    def _score(self, columns: int) -> None:
        self._launch(
            fk.score_kernel, (self.blocks, columns), 4, EARLY,
            self.all_logits, self.all_seen, self.control, self.settings, self.reals,
            self.bests, self.best_ids, self.tops, self.exp_maxes, self.exp_sums,
            N=self.model.config.vocab, BLOCK=SCORES, BLOCKS=self.blocks,
        )  # fmt: skip

    def _filter_all(self, columns: int, filters: Filters) -> None:
        """As `_filter`, of every column in the same launches."""
        of = Filtered(
            self.control, self.settings, self.reals, self.all_logits, self.all_seen, self.tops,
            self.many_lows, self.many_floors, self.many_above, self.many_mass, self.bests,
            self.best_ids,
        )  # fmt: skip
        # The score kernel's parts of the largest score are blocks, not programs of the head.
        heads = {"HEADS": self.blocks, "BLOCK_H": power_of_two(self.blocks), "MANY": True}
        constants = {**self._blocks(), **heads}
        draw_filtered(self._launch, filters, of, (self.blocks, columns), **constants)

    def _settle(
        self,
        width: int,
        best: torch.Tensor,
        best_id: torch.Tensor,
        exp_max: torch.Tensor,
        exp_sum: torch.Tensor,
    ) -> None:
        """All [columns, parts]."""
        c, parts, exps = self.model.config, best.shape[1], exp_max.shape[1]
        self._launch(
            fk.settle_kernel, 1, 8, EARLY,
            self.all_logits, best, best_id, exp_max, exp_sum, self.control, self.passes,
            self.model.weights.embed, self.x, self.all_seen, self.history, self.drafts, width - 1,
            WIDTH=power_of_two(width), COLUMNS=self.columns, PARTS=parts,
            BLOCK_P=power_of_two(parts), EXPS=exps, BLOCK_E=power_of_two(exps), N=c.vocab,
            K=c.hidden, BLOCK_K=power_of_two(c.hidden), RING=RING, LIMIT=len(self.history),
            MOST_DRAFTS=self.widest - 1, NGRAM=self.ngram, DEVICE=self.on_gpu,
        )  # fmt: skip
