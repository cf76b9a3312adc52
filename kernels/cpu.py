"""One decode step on the CPU, and the loop over tokens around it, for threads that never leave.

`decode` reads top to bottom as one step of every thread; its stages are in
kernels/cpu_layer_stages.py and kernels/cpu_head.py. Each is shared out in items
(kernels/cpu_exchange.py); their names, order and PyTorch twins are in kernels/stages.py and
kernels/reference.py. Arithmetic: float32 throughout, except that block formats multiply int8
activations by the weights' integers; sums run in a fixed order, so results repeat bit for bit.
"""

from __future__ import annotations

from engine import mailbox as mb
from kernels.cpu_atomics import fetch_add, load_acquire, now_ns, store_release
from kernels.cpu_exchange import complete, ended, next_item, word
from kernels.cpu_head import finish, head_stage, mark_draft, sample_stage
from kernels.cpu_host import kernel, part
from kernels.cpu_layer_stages import (
    attention_stage,
    down_stage,
    gate_up_stage,
    output_stage,
    qkv_stage,
    rope_stage,
)
from kernels.cpu_matrix import embed
from kernels.cpu_notify import await_doorbell, notify
from kernels.cpu_speculation import look_up, pace_new_reply, pace_width
from kernels.cpu_state import AT, BEGAN_NS, CHUNK, DRAFTED, LAYERS, TOKENS, Own, Shared
from kernels.stages import EMBED


@kernel
def reside(s: Shared, own: Own, wake_fd: int) -> None:
    """The life of one thread: sleep until a doorbell, decode a reply, again, until shutdown."""
    run = 0
    while True:
        run = await_doorbell(s.words, own.byte, run, wake_fd)
        if run < 0:
            return
        decode(s, own)
        fetch_add(word(s.words, mb.IDLE), 1)


@part
def decode(s: Shared, own: Own) -> None:
    """Process the prompt in chunks, then sample and feed tokens until the reply ends.

    A thread that comes late may find the numbers of a later pass in `under_way`: by then every
    stage of its own pass is over. What stages a pass has is therefore told without them.
    """
    sequence, fed = 1, 0  # of the prompt
    prompt, sampling_on = s.words[mb.PROMPT_TOKENS], s.words[mb.MAX_TOKENS] > 0
    layers, drafted = s.shape[LAYERS], s.words[mb.DRAFT_TOKENS]
    while True:
        chunk = chunk_of(prompt - fed, drafted)
        sequence = embed_stage(s, sequence, fed, chunk)
        if ended(s.words, sequence):
            return
        count, position = s.under_way[TOKENS], s.under_way[AT]
        for layer in range(layers):
            sequence = qkv_stage(s, own, sequence, layer, count)
            sequence = rope_stage(s, own, sequence, layer, count, position)
            sequence = attention_stage(s, own, sequence, layer, count, position)
            sequence = output_stage(s, own, sequence, layer, count)
            sequence = gate_up_stage(s, own, sequence, layer, count)
            sequence = down_stage(s, own, sequence, layer, count)
        fed += chunk
        if fed >= prompt and sampling_on:
            known = chunk - drafted if chunk > 0 else 1
            sequence = head_stage(s, own, sequence, count, known, position)
            sequence = sample_stage(s, own, sequence, count, known, position)
            if ended(s.words, sequence):
                return


@kernel
def chunk_of(left: int, drafted: int) -> int:
    """How many of the prompt's last `left` tokens to feed in one pass, 0 when there are none.

    The last `drafted` share a pass with the one before them alone.
    """
    if 0 < drafted < left - 1:
        return min(CHUNK, left - drafted - 1)
    return min(CHUNK, left)


@part
def embed_stage(s: Shared, sequence: int, fed: int, chunk: int) -> int:
    """Begin a pass: of `chunk` prompt tokens after the first `fed`, or of the last token and a
    draft. Here, once per pass, one thread reads the stop word for all.
    """
    while next_item(s.words, sequence, 1, EMBED, 0) >= 0:
        w, now = s.words, s.under_way
        now[BEGAN_NS] = now_ns(w[mb.CLOCK])
        if w[mb.PUBLISHED] == 0:
            store_release(word(w, mb.FED), fed)
        if fed == 0 and w[mb.WIDTH] > 1:
            pace_new_reply(s.pace)
        stopped = load_acquire(word(w, mb.STOP)) == w[mb.DOORBELL]
        if stopped or (w[mb.MAX_TOKENS] == 0 and chunk == 0):
            finish(s, sequence, mb.STOPPED if stopped else mb.PREFILLED, w[mb.PUBLISHED])
            notify(w)
        else:
            position, count, known = w[mb.START] + w[mb.FED], chunk, chunk
            if chunk == 0:
                known, count = 1, 1 + draft(s, position + 1)
            elif fed + chunk == w[mb.PROMPT_TOKENS]:
                known -= w[mb.DRAFT_TOKENS]
            now[AT], now[TOKENS] = position, count
            mark_draft(s, position + known, position + count)
            for t in range(count):
                embed(s.plan[-1], s.context[position + t], s.x[t])
        complete(w, sequence, 1)
    return sequence + 1


@part
def draft(s: Shared, end: int) -> int:
    """Draft behind the `end` known tokens; how many of the draft to feed."""
    w = s.words
    room = min(
        min(w[mb.WIDTH], CHUNK) - 1, w[mb.MAX_TOKENS] - w[mb.PUBLISHED] - 1, w[mb.CAPACITY] - end
    )
    s.under_way[DRAFTED] = look_up(s.context, end, room) if room > 0 else 0
    if s.under_way[DRAFTED] == 0:
        return 0
    return pace_width(s.pace, s.under_way[DRAFTED], w[mb.WIDTH]) - 1
