"""One decode step, and the loop over tokens around it: a whole reply in one launch.

`decode_reply` reads top to bottom as the step; each stage is a function of kernels/step_stages.py
or kernels/draw_stages.py, the same that kernels launched singly call. Between stages stands a
barrier over the grid. What a stage reads first, weights that nobody writes, is asked for before
the barrier that it waits at.

Every program draws the same token from the same words, so that all feed it, and all leave, at the
same step without telling one another. One program speaks to the host.

mailbox (int64, engine/mailbox.py): `box_ptr` in pinned host memory, `run_ptr` and `numbers_ptr`
(float64) copies on the device made before the launch.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.attention import history_tile, splits_used
from kernels.dependent import prefetch_to_l2
from kernels.draw_stages import (
    embed_token,
    largest_score,
    log_probability,
    measure_block,
    pick_block,
    settle,
)
from kernels.grid_barrier import FAULT, HALT, grid_barrier, place_of
from kernels.sampling import DIGITS, next_low, publish, store_to_host
from kernels.step_stages import (
    attention_split,
    gate_up_rows,
    head_segment,
    head_tile,
    pairs_tile,
    qkv_rows,
    residual_rows,
    rows_tile,
)

_INT_MIN = tl.constexpr(-(2**31))
# Words of the mailbox, as in engine/mailbox.py; test_decode_step.py holds them together.
DOORBELL, STOP, TIMEOUT_NS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(3)
START, CAPACITY = tl.constexpr(7), tl.constexpr(8)
KEYS, VALUES = tl.constexpr(9), tl.constexpr(10)
MAX_TOKENS, SEED, TOP_K = tl.constexpr(11), tl.constexpr(12), tl.constexpr(13)
FINISH, PREFILL_END_NS, FAULT_WORD = tl.constexpr(16), tl.constexpr(18), tl.constexpr(19)
NEXT_TOKEN, PUBLISHED = tl.constexpr(20), tl.constexpr(24)
STOP_IDS, MAX_STOP_IDS = tl.constexpr(64), tl.constexpr(16)  # their count is the word before
TEMPERATURE, TOP_P, MIN_P, PENALTY = (
    tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
)  # fmt: skip
EOS, LENGTH, CONTEXT, STOPPED, FAULTED = (
    tl.constexpr(1), tl.constexpr(2), tl.constexpr(3), tl.constexpr(4), tl.constexpr(6)
)  # fmt: skip
# Places of a fault, as in kernels/stages.py.
_QKV, _ATTENTION, _OUTPUT = tl.constexpr(1), tl.constexpr(3), tl.constexpr(4)
_GATE_UP, _DOWN, _HEAD, _SAMPLE = (
    tl.constexpr(5), tl.constexpr(6), tl.constexpr(7), tl.constexpr(8)
)  # fmt: skip


@triton.jit
def ask_rows(w_ptr, first, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, ON: tl.constexpr):
    """Have ROWS rows from `first` on brought into L2; nothing where there are none."""
    if ON:
        if first + ROWS <= N:
            prefetch_to_l2(w_ptr + first.to(tl.int64) * K, ROWS * K, True)


@triton.jit
def qkv_stage(
    tile, program, x_ptr, gain_ptr, w_ptr, bias_ptr, out_ptr,
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, BIAS: tl.constexpr, GRID: tl.constexpr,
):  # fmt: skip
    """norm + QKV: rows program * ROWS and every GRID * ROWS further."""
    first = program * ROWS
    while first < N:
        after, upcoming = first + GRID * ROWS, tile
        if after < N:
            upcoming = rows_tile(w_ptr, after, N, K, ROWS, BLOCK_K)
        qkv_rows(
            tile, first, x_ptr, gain_ptr, w_ptr, bias_ptr, out_ptr, EPS, N, K, ROWS, BLOCK_K, BIAS
        )
        tile, first = upcoming, after


@triton.jit
def residual_stage(
    tile, program, x_ptr, w_ptr, residual_ptr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, GRID: tl.constexpr,
):  # fmt: skip
    """Output or down projection + residual, rows as in `qkv_stage`."""
    first = program * ROWS
    while first < N:
        after, upcoming = first + GRID * ROWS, tile
        if after < N:
            upcoming = rows_tile(w_ptr, after, N, K, ROWS, BLOCK_K)
        residual_rows(tile, first, x_ptr, w_ptr, residual_ptr, N, K, ROWS, BLOCK_K)
        tile, first = upcoming, after


@triton.jit
def gate_up_stage(
    tile, program, x_ptr, gain_ptr, w_ptr, out_ptr, EPS: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    GRID: tl.constexpr,
):  # fmt: skip
    """norm + gate/up + SiLU: ROWS // 2 pairs at a time, as in `qkv_stage`."""
    PAIRS: tl.constexpr = ROWS // 2
    first = program * PAIRS
    while first < N:
        after, upcoming = first + GRID * PAIRS, tile
        if after < N:
            upcoming = pairs_tile(w_ptr, after, N, K, ROWS, BLOCK_K)
        gate_up_rows(tile, first, x_ptr, gain_ptr, w_ptr, out_ptr, EPS, N, K, ROWS, BLOCK_K)
        tile, first = upcoming, after


@triton.jit
def threshold_stage(
    program, floor, target, arrivals, sync_ptr, box_ptr, timeout_ns, place,
    logits_ptr, seen_ptr, penalty, temperature, top, above_ptr, mass_ptr,
    N: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK_B: tl.constexpr, COUNT: tl.constexpr, GRID: tl.constexpr, DEVICE: tl.constexpr,
):  # fmt: skip
    """(threshold of top-k with COUNT, else of top-p; arrivals): four bits between two barriers."""
    low = tl.full([], _INT_MIN, tl.int32)
    for digit in range(8):
        shift, side = 28 - 4 * digit, digit % 2
        sums_ptr, total_ptr = above_ptr + side * BLOCKS * DIGITS, mass_ptr + side * BLOCKS
        block = program
        while block < BLOCKS:
            measure_block(
                block, logits_ptr, seen_ptr, penalty, temperature, top, floor, low, shift,
                sums_ptr, total_ptr, N, BLOCK, CHUNK, COUNT,
            )  # fmt: skip
            block += GRID
        arrivals += GRID
        grid_barrier(sync_ptr, arrivals, timeout_ns, box_ptr + FAULT_WORD, place, DEVICE)
        low = next_low(sums_ptr, total_ptr, low, shift, target, BLOCKS, BLOCK_B, COUNT)
    return low, arrivals


@triton.jit
def is_stop_id(run_ptr, token):
    """Whether `token` is one of the run's stop ids."""
    i = tl.arange(0, MAX_STOP_IDS)
    stops = tl.load(run_ptr + STOP_IDS + i, mask=i < tl.load(run_ptr + STOP_IDS - 1), other=-1)
    return tl.sum((stops == token).to(tl.int32), axis=0) > 0


@triton.jit
def end_of(run_ptr, token, count, position, halt, fault):
    """Why the reply ends with this token, or 0: engine.eager.finish_reason, and then the host."""
    end = tl.where(halt != 0, STOPPED, 0)
    end = tl.where(position >= tl.load(run_ptr + CAPACITY), CONTEXT, end)
    end = tl.where(count >= tl.load(run_ptr + MAX_TOKENS), LENGTH, end)
    end = tl.where(is_stop_id(run_ptr, token), EOS, end)
    return tl.where(fault != 0, FAULTED, end)


@triton.jit
def decode_reply(
    box_ptr, slots_ptr, run_ptr, numbers_ptr, sync_ptr,
    embed_ptr, attn_norm_ptr, qkv_w_ptr, qkv_bias_ptr, q_gain_ptr, k_gain_ptr, o_w_ptr,
    mlp_norm_ptr, gate_up_w_ptr, down_w_ptr, norm_ptr, head_w_ptr, cos_ptr, sin_ptr,
    x_ptr, qkv_ptr, attended_ptr, activated_ptr, logits_ptr, seen_ptr,
    part_out_ptr, part_max_ptr, part_sum_ptr, arrived_ptr,
    best_ptr, best_id_ptr, top_ptr, exp_max_ptr, exp_sum_ptr,
    kept_best_ptr, kept_best_id_ptr, above_ptr, mass_ptr,
    LAYERS: tl.constexpr, HIDDEN: tl.constexpr, INTERMEDIATE: tl.constexpr, VOCAB: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    EPS: tl.constexpr, SCALE: tl.constexpr, BIAS: tl.constexpr, QK_NORM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr,
    QKV_ROWS: tl.constexpr, QKV_K: tl.constexpr, O_ROWS: tl.constexpr, O_K: tl.constexpr,
    GATE_ROWS: tl.constexpr, GATE_K: tl.constexpr, DOWN_ROWS: tl.constexpr, DOWN_K: tl.constexpr,
    HEAD_ROWS: tl.constexpr, HEAD_K: tl.constexpr,
    SEGMENT: tl.constexpr, BLOCK_SEGMENT: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK_B: tl.constexpr, DTYPE: tl.constexpr, GRID: tl.constexpr, AHEAD: tl.constexpr,
    DEVICE: tl.constexpr,
):  # fmt: skip
    """Decode one reply. GRID programs, all resident at once; see engine/persistent_triton.py."""
    Q: tl.constexpr = HEADS * D
    QKV: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    LAST: tl.constexpr = GRID - 1
    # Where a program without rows of its own looks instead, and what it reads there it ignores.
    QKV_LAST: tl.constexpr = QKV - QKV_ROWS if QKV > QKV_ROWS else 0
    ROW_LAST: tl.constexpr = HIDDEN - O_ROWS if HIDDEN > O_ROWS else 0
    DOWN_LAST: tl.constexpr = HIDDEN - DOWN_ROWS if HIDDEN > DOWN_ROWS else 0
    PAIRS: tl.constexpr = GATE_ROWS // 2
    PAIR_LAST: tl.constexpr = INTERMEDIATE - PAIRS if INTERMEDIATE > PAIRS else 0
    program = tl.program_id(0)
    timeout_ns = tl.load(run_ptr + TIMEOUT_NS)
    fault_ptr = box_ptr + FAULT_WORD
    positions = tl.load(run_ptr + CAPACITY)
    keys_ptr = tl.multiple_of(tl.load(run_ptr + KEYS), 16).to(tl.pointer_type(DTYPE))
    values_ptr = tl.multiple_of(tl.load(run_ptr + VALUES), 16).to(tl.pointer_type(DTYPE))
    temperature = tl.load(numbers_ptr + TEMPERATURE).to(tl.float32)
    penalty = tl.load(numbers_ptr + PENALTY).to(tl.float32)
    seed = tl.load(run_ptr + SEED)
    token = tl.load(run_ptr + NEXT_TOKEN).to(tl.int32)
    position = tl.load(run_ptr + START).to(tl.int32)
    count = tl.full([], 0, tl.int32)
    arrivals, end = count, count
    if program == LAST:
        tl.store(box_ptr + PREFILL_END_NS, cuda.globaltimer() if DEVICE else 1)

    while end == 0:
        # Each program makes x of its own accord, all of them the same: no barrier is needed.
        embed_token(embed_ptr, token, x_ptr, seen_ptr, HIDDEN, BLOCK_H)
        tl.debug_barrier()
        used = splits_used(position, SPLITS, BLOCK_N)
        part = tl.minimum(program, KV_HEADS * SPLITS - 1)
        qkv_tile = rows_tile(
            qkv_w_ptr, tl.minimum(program * QKV_ROWS, QKV_LAST), QKV, HIDDEN,
            QKV_ROWS, QKV_K,
        )  # fmt: skip
        for layer in range(LAYERS):
            wide = tl.cast(layer, tl.int64)
            # norm + QKV
            qkv_stage(
                qkv_tile, program, x_ptr, attn_norm_ptr + layer * HIDDEN,
                qkv_w_ptr + wide * QKV * HIDDEN, qkv_bias_ptr + layer * QKV * BIAS, qkv_ptr,
                EPS, QKV, HIDDEN, QKV_ROWS, QKV_K, BIAS, GRID,
            )  # fmt: skip
            row_ptr = keys_ptr + (wide * KV_HEADS + part // SPLITS) * positions * D
            value_ptr = values_ptr + (wide * KV_HEADS + part // SPLITS) * positions * D
            start = part % SPLITS * BLOCK_N
            k = history_tile(row_ptr, start, position, D, BLOCK_D, BLOCK_G, BLOCK_N)
            v = history_tile(value_ptr, start, position, D, BLOCK_D, BLOCK_G, BLOCK_N)
            ask_rows(o_w_ptr + wide * HIDDEN * Q, program * O_ROWS, HIDDEN, Q, O_ROWS, AHEAD)
            arrivals += GRID
            grid_barrier(
                sync_ptr, arrivals, timeout_ns, fault_ptr, place_of(_QKV, layer, count), DEVICE
            )

            # RoPE + KV append, attention, combine
            if program < KV_HEADS * SPLITS:
                attention_split(
                    k, v, program, qkv_ptr, q_gain_ptr + layer * D * QK_NORM,
                    k_gain_ptr + layer * D * QK_NORM, cos_ptr + position * (D // 2),
                    sin_ptr + position * (D // 2), row_ptr, value_ptr, position, used,
                    part_out_ptr, part_max_ptr, part_sum_ptr, arrived_ptr, attended_ptr,
                    HEADS, KV_HEADS, D, BLOCK_D, BLOCK_G, BLOCK_N, SPLITS, BLOCK_S,
                    EPS, QK_NORM, SCALE,
                )  # fmt: skip
            gate_w_ptr = gate_up_w_ptr + wide * 2 * INTERMEDIATE * HIDDEN
            pairs = program * PAIRS
            o_tile = rows_tile(
                o_w_ptr + wide * HIDDEN * Q,
                tl.minimum(program * O_ROWS, ROW_LAST), HIDDEN, Q, O_ROWS, O_K,
            )  # fmt: skip
            arrivals += GRID
            grid_barrier(
                sync_ptr, arrivals, timeout_ns, fault_ptr, place_of(_ATTENTION, layer, count),
                DEVICE,
            )  # fmt: skip

            # output projection + residual
            residual_stage(
                o_tile, program, attended_ptr, o_w_ptr + wide * HIDDEN * Q, x_ptr,
                HIDDEN, Q, O_ROWS, O_K, GRID,
            )  # fmt: skip
            gate_tile = pairs_tile(
                gate_w_ptr, tl.minimum(pairs, PAIR_LAST),
                INTERMEDIATE, HIDDEN, GATE_ROWS, GATE_K,
            )  # fmt: skip
            arrivals += GRID
            grid_barrier(
                sync_ptr, arrivals, timeout_ns, fault_ptr, place_of(_OUTPUT, layer, count), DEVICE
            )

            # norm + gate/up + SiLU
            gate_up_stage(
                gate_tile, program, x_ptr, mlp_norm_ptr + layer * HIDDEN, gate_w_ptr,
                activated_ptr, EPS, INTERMEDIATE, HIDDEN, GATE_ROWS, GATE_K, GRID,
            )  # fmt: skip
            down_ptr = down_w_ptr + wide * HIDDEN * INTERMEDIATE
            down_tile = rows_tile(
                down_ptr, tl.minimum(program * DOWN_ROWS, DOWN_LAST),
                HIDDEN, INTERMEDIATE, DOWN_ROWS, DOWN_K,
            )  # fmt: skip
            arrivals += GRID
            grid_barrier(
                sync_ptr, arrivals, timeout_ns, fault_ptr, place_of(_GATE_UP, layer, count), DEVICE
            )

            # down projection + residual
            residual_stage(
                down_tile, program, activated_ptr, down_ptr, x_ptr,
                HIDDEN, INTERMEDIATE, DOWN_ROWS, DOWN_K, GRID,
            )  # fmt: skip
            following = tl.minimum(wide + 1, LAYERS - 1) * QKV * HIDDEN
            qkv_tile = rows_tile(
                qkv_w_ptr + following, tl.minimum(program * QKV_ROWS, QKV_LAST),
                QKV, HIDDEN, QKV_ROWS, QKV_K,
            )  # fmt: skip
            arrivals += GRID
            grid_barrier(
                sync_ptr, arrivals, timeout_ns, fault_ptr, place_of(_DOWN, layer, count), DEVICE
            )

        # norm + LM head, and each program's part of the draw
        if program == LAST:
            asked = tl.load(box_ptr + STOP, volatile=True) == tl.load(run_ptr + DOORBELL)
            tl.store(sync_ptr + HALT, asked.to(tl.int32))
        tile = head_tile(head_w_ptr, program, VOCAB, HIDDEN, HEAD_ROWS, HEAD_K, SEGMENT)
        head_segment(
            tile, program, x_ptr, norm_ptr, head_w_ptr, logits_ptr, seen_ptr,
            best_ptr, best_id_ptr, top_ptr, exp_max_ptr, exp_sum_ptr,
            seed, position + 1, temperature, penalty,
            EPS, VOCAB, HIDDEN, HEAD_ROWS, HEAD_K, SEGMENT, BLOCK_SEGMENT,
        )  # fmt: skip
        arrivals += GRID
        grid_barrier(
            sync_ptr, arrivals, timeout_ns, fault_ptr, place_of(_HEAD, LAYERS, count), DEVICE
        )

        # sample
        token = settle(best_ptr, best_id_ptr, PARTS, VOCAB, BLOCK_P)
        top_k = tl.load(run_ptr + TOP_K)
        top_p = tl.load(numbers_ptr + TOP_P).to(tl.float32)
        min_p = tl.load(numbers_ptr + MIN_P)
        if (temperature > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0)):
            place = place_of(_SAMPLE, LAYERS, count)
            top = largest_score(top_ptr, PARTS, BLOCK_P)
            threshold = tl.full([], _INT_MIN, tl.int32)
            if top_k > 0:
                threshold, arrivals = threshold_stage(
                    program, threshold, top_k.to(tl.float32), arrivals, sync_ptr, box_ptr,
                    timeout_ns, place, logits_ptr, seen_ptr, penalty, temperature, top,
                    above_ptr, mass_ptr, VOCAB, BLOCK, CHUNK, BLOCKS, BLOCK_B, True, GRID, DEVICE,
                )  # fmt: skip
            if top_p < 1:
                threshold, arrivals = threshold_stage(
                    program, threshold, top_p, arrivals, sync_ptr, box_ptr,
                    timeout_ns, place, logits_ptr, seen_ptr, penalty, temperature, top,
                    above_ptr, mass_ptr, VOCAB, BLOCK, CHUNK, BLOCKS, BLOCK_B, False, GRID, DEVICE,
                )  # fmt: skip
            log_min_p = tl.where(min_p > 0, tl.log(tl.maximum(min_p, 1e-300)), -3.0e38)
            block = program
            while block < BLOCKS:
                pick_block(
                    block, logits_ptr, seen_ptr, penalty, temperature, top, threshold,
                    log_min_p.to(tl.float32), seed, position + 1, kept_best_ptr,
                    kept_best_id_ptr, VOCAB, BLOCK,
                )  # fmt: skip
                block += GRID
            arrivals += GRID
            grid_barrier(sync_ptr, arrivals, timeout_ns, fault_ptr, place, DEVICE)
            token = settle(kept_best_ptr, kept_best_id_ptr, BLOCKS, VOCAB, BLOCK_B)

        # Whether the reply goes on: the same answer in every program.
        position += 1
        count += 1
        halt = tl.load(sync_ptr + HALT, volatile=True)
        fault = tl.load(sync_ptr + FAULT, volatile=True)
        end = end_of(run_ptr, token, count, position, halt, fault)
        if program == LAST:
            if fault == 0:
                logprob = log_probability(
                    token, logits_ptr, exp_max_ptr, exp_sum_ptr, PARTS, BLOCK_P
                )
                slot_ptr = slots_ptr + (count - 1) * 3
                publish(slot_ptr, box_ptr + PUBLISHED, token, logprob, count, DEVICE)
            if end != 0:
                tokens = (count - (fault != 0).to(tl.int32)).to(tl.int64)
                finish = tokens << 8 | end.to(tl.int64)
                if DEVICE:
                    store_to_host(box_ptr + FINISH, finish)
                else:
                    tl.store(box_ptr + FINISH, finish)
