"""The persistent engine at the memory ceiling: weights on tapes, one CUDA kernel for a reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from engine import mailbox as mb
from engine.anatomy import StageProfile
from engine.base import DecodeRun, check_prompt
from engine.errors import UnpausedError
from engine.gpu import gpu_reason, told_plainly
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.resident import ResidentRun
from engine.resident_gpu import GpuResident, GpuResidentEngine
from engine.sampling import SamplingParams
from engine.speculation import LONGEST_MATCH, MAX_CONTEXT, Speculation
from engine.taking_turns import TurnTakingRun
from engine.triton_engine import scratch_bytes

if TYPE_CHECKING:
    from kernels.tape import Choices, TapeKernel

_IN_KERNEL = 64  # the longest prompt that does not go through the eager engine's layers


class PersistentTapeEngine(GpuResidentEngine):
    """Layers, LM head, sampling and the decision to stop in one kernel that stays.

    A second copy of the weights lies on tapes in the order of consumption. All but the last token
    of a prompt go through the eager engine's layers, which share the cache; with `width` above 1
    up to 64 go through the same kernel compiled for passes of as many tokens (or as fit), each
    for the cost of one. One reply at a time. bfloat16 only.

    With `speculation` n-grams are drafted, verified and accepted inside the kernel, by the rules of
    engine/speculation.py and without the host: a pass is as wide as pays, up to what fits. What
    passes cost is learnt on the device, over replies. A single token takes longer in that kernel,
    so with `turns` it decodes only where drafts hold (engine/taking_turns.py). It does not draft
    with a model: a second model's tape would have to run through the same ring, which this kernel
    has not been built for.
    """

    name = "persistent-tape"
    speculates = ("ngram",)

    def __init__(
        self,
        model: Model,
        threads: int | None = None,
        choices: Choices | None = None,
        measure: bool = False,
        width: int = 1,
        speculation: Speculation | None = None,
        turns: bool = True,
    ) -> None:
        from kernels.tape import TapeKernel, widest_pass

        if model.device.type != "cuda":
            raise UnpausedError(
                f"{self.name} decodes on an NVIDIA GPU, but the model is on {model.device}"
            )
        if model.dtype != torch.bfloat16:
            raise UnpausedError(f"{self.name} has no {model.dtype}: load the model in bfloat16")
        super().__init__(model)
        needed = model.weight_bytes_per_token + scratch_bytes(model.config)
        with told_plainly(self.name, model.config, needed):
            fitting = widest_pass(model.config, model.device, speculation is not None)
            verified = min(speculation.width, fitting) if speculation else 1
            if speculation and verified < 2:
                raise UnpausedError(
                    f"{self.name} has no room to verify several tokens of {model.name} at once on "
                    "this GPU: use --speculate off"
                )
            self.kernel = TapeKernel(model, 1, choices, measure)
            width = min(width, widest_pass(model.config, model.device))
            wide = TapeKernel(model, width, choices, tape=self.kernel.tape) if width > 1 else None
            self.resident = TapeResident(model, self.kernel, wide)
            self.drafting = self._drafting_resident(verified, choices) if speculation else None
            self._turns = turns
            self._warm_up()

    @staticmethod
    def unavailable() -> str | None:
        """No usable GPU, one older than Hopper, or no NVRTC."""
        reason = gpu_reason()
        if reason:
            return reason
        from kernels.tape_build import MIN_CAPABILITY, nvrtc_reason

        capability = torch.cuda.get_device_capability()
        if capability < MIN_CAPABILITY:
            name = torch.cuda.get_device_name()
            return f"{name} (sm_{capability[0]}{capability[1]}) is older than sm_90"
        return nvrtc_reason()

    def decode(self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams) -> DecodeRun:
        if self.drafting is None:
            return super().decode(cache, token_ids, params)
        if not self._turns:
            return self._decode_drafting(cache, token_ids, params)
        alone = super().decode
        return TurnTakingRun(alone, self._decode_drafting, cache, token_ids, params)

    def close(self) -> None:
        super().close()
        if self.drafting is not None:
            self.drafting.stop()

    def measure_stages(
        self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
    ) -> StageProfile:
        from engine.tape_stages import measure

        check_prompt(self.model, cache, token_ids)
        return measure(self, cache, token_ids, params)

    def _drafting_resident(self, width: int, choices: Choices | None) -> TapeResident:
        from kernels.tape import TapeKernel

        kernel = TapeKernel(self.model, width, choices, tape=self.kernel.tape, speculate=True)
        return TapeResident(self.model, kernel)

    def _decode_drafting(
        self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
    ) -> ResidentRun:
        assert self.drafting is not None
        return self._run(self.drafting, cache, token_ids, params)

    def _warm_up(self) -> None:
        """Load everything a reply touches: a module loaded later would wait for the kernel."""
        penalised = SamplingParams(max_tokens=2, temperature=1.0, top_k=2, repetition_penalty=2)
        decodes = [super().decode, *([self._decode_drafting] if self.drafting else [])]
        for length in (2, _IN_KERNEL + 1):
            prompt = [0] * min(length, self.model.config.max_positions - 2)
            for decode in decodes:
                list(decode(self.model.new_cache(len(prompt) + 2), prompt, penalised))
        if self.drafting is not None:
            self.drafting.kernel.costs.zero_()  # a first pass is slower than the others


class TapeResident(GpuResident):
    """The tape kernel as a resident engine; `wide` takes what a short prompt has before its last
    token, in a launch of its own that the reply's launch follows without the host.
    """

    def __init__(self, model: Model, kernel: TapeKernel, wide: TapeKernel | None = None) -> None:
        super().__init__(model, kernel.launch, kernel.seen)
        self.kernel, self._wide = kernel, wide
        self.words[mb.WIDTH] = kernel.width if kernel.speculate else 1
        self._early = torch.zeros(mb.WORDS, dtype=torch.int64, pin_memory=self.on_gpu)
        self._early_run = torch.zeros(mb.WORDS, dtype=torch.int64, device=model.device)

    def start(self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams | None) -> int:
        """Launch on the last token, behind whatever takes the others."""
        assert params is not None, "a prefill needs no kernel"
        self.wait_idle()
        for word, kernel in ((self.words, self.kernel), (self._early.numpy(), self._wide)):
            if word[mb.FAULT] and kernel is not None:
                kernel.clear()
        before, early = cache.length, list(token_ids[:-1])
        self._early[mb.FAULT] = 0
        if early and self._wide is not None and len(early) <= _IN_KERNEL:
            self._feed(self._wide, cache, early)
        elif early:
            self._prompts.prefill(cache, early)
        self.kernel.prompt[:1].copy_(torch.tensor([int(token_ids[-1])]))
        self.words[mb.PROMPT_TOKENS] = 1
        if self.kernel.speculate:
            self._set_context(cache, int(token_ids[-1]))
        self._set_run(cache, int(token_ids[-1]), params)
        cache.truncate(before)  # whoever reads the run keeps the list
        self.words[mb.FED] = len(early)
        return self._ring_doorbell()

    def _set_context(self, cache: KVCache, token: int) -> None:
        """Where the kernel looks drafts up: the cache's tokens and the one that is fed."""
        for word in (mb.PASSES, mb.DRAFTED, mb.ACCEPTED):
            self.words[word] = 0
        first = max(0, cache.length - MAX_CONTEXT - LONGEST_MATCH)
        known = torch.tensor([*cache.token_ids[first:], token], dtype=torch.int32)
        self.kernel.context[first : first + len(known)].copy_(known)

    def raise_fault(self) -> None:
        """Also of the launch before."""
        if self._early[mb.FAULT] and not self.words[mb.FAULT]:
            self.words[mb.FAULT] = int(self._early[mb.FAULT])
        super().raise_fault()

    def _feed(self, kernel: TapeKernel, cache: KVCache, token_ids: list[int]) -> None:
        """Append keys and values of `token_ids` with the wide kernel; does not wait for it."""
        words = {
            mb.TIMEOUT_NS: int(self.words[mb.TIMEOUT_NS]),
            mb.PROMPT_TOKENS: len(token_ids),
            mb.START: cache.length,
            mb.CAPACITY: cache.max_positions,
            mb.KEYS: cache.k.data_ptr(),
            mb.VALUES: cache.v.data_ptr(),
            mb.DOORBELL: 1,
        }
        self._early.zero_()
        for word, value in words.items():
            self._early[word] = value
        kernel.prompt[: len(token_ids)].copy_(torch.tensor(token_ids))
        self._early_run.copy_(self._early)
        slots = torch.from_numpy(self.mailbox.slots)  # nothing is sampled
        kernel.launch(self._early, slots, self._early_run, self.numbers)
        cache.token_ids.extend(token_ids)
