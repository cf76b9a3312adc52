"""How a host talks to a resident engine: a mailbox of words, a ring of tokens, a bell.

All three are plain shared memory, so that the other side can be compiled code or a GPU. Words are
64-bit; the host writes those of the first group, the engine those of the second, and each only
reads what the other writes. A run's words are set before its doorbell rings and then left alone,
except STOP and SHUTDOWN.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import torch

from engine.base import FinishReason, Token

# Host to engine
DOORBELL = 0  # number of the latest run; a change starts it
STOP = 1  # number of the run to end, read once per token
SHUTDOWN = 2  # not 0: leave, in the middle of a run too
TIMEOUT_NS = 3  # longest wait of one thread for the others
CLOCK = 4  # the POSIX clock of every timestamp
TOKEN_FD = 5  # where the engine writes a byte per event, for a host that sleeps
PROMPT_TOKENS = 6
START = 7  # position of the first prompt token
CAPACITY = 8  # positions of the KV cache
KEYS, VALUES = 9, 10  # addresses of the KV cache
MAX_TOKENS = 11  # 0: process the prompt and sample nothing
SEED, TOP_K = 12, 13
WIDTH = 14  # tokens that a pass may verify; 0 or 1: no speculation
DRAFT_TOKENS = 15  # how many of the prompt's last tokens are a draft to be verified
# Engine to host
FINISH = 16  # packed by `pack_finish`, 0 while the run goes on
FED = 17  # prompt and sampled tokens whose keys and values are in the cache
PREFILL_END_NS = 18
FAULT = 19  # packed by `pack_fault`, 0 when all is well
# Among the engine's threads; words that many threads write lie in cache lines of their own
NEXT_TOKEN, END = 20, 21
PUBLISHED = 24  # tokens in the ring since the run began
PASSES, DRAFTED, ACCEPTED = 25, 26, 27  # see engine.base.DraftCounts
STATE, DONE, IDLE = 32, 40, 48
# Host to a GPU, which has no list of its own to look stop ids up in
STOP_COUNT, STOP_IDS = 63, 64
MAX_STOP_IDS = 16
WORDS = STOP_IDS + MAX_STOP_IDS

# Numbers: a second array, float64
TEMPERATURE, TOP_P, MIN_P, REPETITION_PENALTY = range(4)
NUMBERS = 4

RUNNING, EOS, LENGTH, CONTEXT, STOPPED, PREFILLED, FAULTED = range(7)
FINISH_REASONS: dict[int, FinishReason] = {
    EOS: "eos", LENGTH: "length", CONTEXT: "context", STOPPED: "stopped",
}  # fmt: skip

# A slot of the ring
SLOT_ID, SLOT_TIME_NS, SLOT_LOGPROB = range(3)

_LAYER_BITS, _STAGE_BITS, _REASON_BITS = 16, 8, 8


def pack_finish(reason: int, tokens: int) -> int:
    """One word that says why a run ended and after how many tokens, whichever is read first."""
    return tokens << _REASON_BITS | reason


def pack_fault(stage: int, layer: int, token: int) -> int:
    """One word that is not 0 and says where a run failed."""
    return ((token << _LAYER_BITS | layer) << _STAGE_BITS) | (stage + 1)


def unpack_fault(word: int) -> tuple[int, int, int]:
    """(stage, layer, token) of `pack_fault`."""
    stage = (word & ((1 << _STAGE_BITS) - 1)) - 1
    layer = (word >> _STAGE_BITS) & ((1 << _LAYER_BITS) - 1)
    return stage, layer, word >> (_STAGE_BITS + _LAYER_BITS)


class Mailbox:
    """The words and numbers, and the ring of `capacity` tokens.

    `words`: int64 [WORDS]. `numbers`: float64 [NUMBERS]. `slots`: int64 [capacity, 3], where a
    slot's log-probability is a float64: `logprobs` is the same memory seen as float64.
    A run never publishes more than `capacity` tokens, so nothing is overwritten unread.
    `pinned`: in page-locked memory, which a GPU reads and writes.
    """

    def __init__(self, capacity: int, pinned: bool = False) -> None:
        def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
            held: np.ndarray = torch.zeros(shape, dtype=dtype, pin_memory=pinned).numpy()
            return held

        self.words = zeros((WORDS,), torch.int64)
        self.numbers = zeros((NUMBERS,), torch.float64)
        self.slots = zeros((capacity, 3), torch.int64)
        self.logprobs = self.slots.view(np.float64)

    def ended(self, taken: int) -> int:
        """Why the run is over (EOS, ...) for who has taken `taken` tokens; RUNNING while it is not.

        Engines may write the last token's count and the end in either order.
        """
        word = int(self.words[FINISH])
        tokens, reason = word >> _REASON_BITS, word & ((1 << _REASON_BITS) - 1)
        return reason if taken >= tokens else RUNNING

    def tokens(self, first: int) -> Iterator[Token]:
        """Tokens published and not yet read, from number `first` on.

        Call it after a wait on the bell: the system call orders these reads after the writes.
        """
        for index in range(first, int(self.words[PUBLISHED])):
            slot = self.slots[index]
            yield Token(int(slot[SLOT_ID]), int(slot[SLOT_TIME_NS]), float(self.logprobs[index, 2]))


class Bell:
    """A pipe to sleep on: one side writes bytes, the other waits for them. Never blocks a writer.

    `write_fd` may be rung by compiled code; a full pipe drops bytes, which wakes all the same.
    """

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.write_fd, False)

    def ring(self) -> None:
        """Wake the reader."""
        with suppress(BlockingIOError):
            os.write(self.write_fd, b"\0")

    def wait(self, timeout_s: float) -> bool:
        """Until it rings, at most `timeout_s`; takes up what has rung. Returns whether it did."""
        poll = select.poll()
        poll.register(self.read_fd, select.POLLIN)
        if not poll.poll(timeout_s * 1e3):
            return False
        os.read(self.read_fd, 4096)
        return True

    def close(self) -> None:
        """Close both ends; a reader in compiled code sees the end of the file."""
        for fd in (self.write_fd, self.read_fd):
            with suppress(OSError):
                os.close(fd)
