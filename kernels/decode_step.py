"""One decode step, and the loop over tokens around it: a whole reply in one launch.

`decode_reply` reads top to bottom as the step: matrices by `kernels.streams.stream`, attention by
kernels/resident_stages.py, the draw by kernels/draw_stages.py, which kernels launched singly call
too. Between stages stands a barrier over the grid. What a stage reads first, weights that nobody
writes, is asked for between arriving at the barrier before it and waiting there.

Every program draws the same token from the same words, so that all feed it, and all leave, at the
same step without telling one another. One program speaks to the host.

mailbox (int64, engine/mailbox.py): `box_ptr` in pinned host memory, `run_ptr` and `numbers_ptr`
(float64) copies on the device made before the launch.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.draw_stages import (
    embed_token,
    largest_score,
    log_probability,
    pick_block,
    settle,
)
from kernels.grid_barrier import FAULT, HALT, grid_arrive, grid_barrier, grid_wait, place_of
from kernels.resident_stages import attention_stage, history_tiles, threshold_stage
from kernels.sampling import publish, store_to_host
from kernels.step_stages import segment_draw
from kernels.streams import GATED, PROJECT, RESIDUAL, anew, first_tiles, share, stream

_INT_MIN = tl.constexpr(-(2**31))
# Words of the mailbox, as in engine/mailbox.py; test_persistent_triton.py holds them together.
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
    part_out_ptr, part_max_ptr, part_sum_ptr,
    best_ptr, best_id_ptr, top_ptr, exp_max_ptr, exp_sum_ptr,
    kept_best_ptr, kept_best_id_ptr, above_ptr, mass_ptr,
    LAYERS: tl.constexpr, HIDDEN: tl.constexpr, INTERMEDIATE: tl.constexpr, VOCAB: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    EPS: tl.constexpr, SCALE: tl.constexpr, BIAS: tl.constexpr, QK_NORM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr, QKV_ROWS: tl.constexpr, QKV_K: tl.constexpr,
    O_ROWS: tl.constexpr, O_K: tl.constexpr,
    GATE_ROWS: tl.constexpr, GATE_K: tl.constexpr, DOWN_ROWS: tl.constexpr, DOWN_K: tl.constexpr,
    HEAD_ROWS: tl.constexpr, HEAD_K: tl.constexpr, AHEAD: tl.constexpr,
    SEGMENT: tl.constexpr, BLOCK_SEGMENT: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK_B: tl.constexpr, DTYPE: tl.constexpr, GRID: tl.constexpr, DEVICE: tl.constexpr,
):  # fmt: skip
    """Decode one reply. GRID programs, all resident at once; see engine/persistent_triton.py."""
    PARTS: tl.constexpr = KV_HEADS * SPLITS
    Q: tl.constexpr = HEADS * D
    QKV: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    LAST: tl.constexpr = GRID - 1
    PAIRS: tl.constexpr = GATE_ROWS // 2
    program = tl.program_id(0)
    timeout_ns = tl.load(run_ptr + TIMEOUT_NS)
    fault_ptr = box_ptr + FAULT_WORD
    positions = tl.load(run_ptr + CAPACITY)
    keys_ptr = tl.load(run_ptr + KEYS).to(tl.pointer_type(DTYPE))
    values_ptr = tl.load(run_ptr + VALUES).to(tl.pointer_type(DTYPE))
    temperature = tl.load(numbers_ptr + TEMPERATURE).to(tl.float32)
    penalty = tl.load(numbers_ptr + PENALTY).to(tl.float32)
    seed = tl.load(run_ptr + SEED)
    token = tl.load(run_ptr + NEXT_TOKEN).to(tl.int32)
    position = tl.load(run_ptr + START).to(tl.int32)
    count = tl.full([], 0, tl.int32)
    rounds, end = count, count
    if program == LAST:
        tl.store(box_ptr + PREFILL_END_NS, cuda.globaltimer() if DEVICE else 1)

    while end == 0:
        # Each program makes x of its own accord, all of them the same: no barrier is needed.
        embed_token(embed_ptr, token, x_ptr, seen_ptr, HIDDEN, BLOCK_H)
        tl.debug_barrier()
        first, stride, beyond = share(program, QKV, QKV_ROWS, GRID)
        qkv_tile, qkv_ahead = first_tiles(
            qkv_w_ptr, first, stride, beyond, QKV, HIDDEN, QKV_ROWS, QKV_K, PROJECT
        )
        for layer in range(LAYERS):
            program = anew(tl.program_id(0), DEVICE)
            wide = tl.cast(anew(layer, DEVICE), tl.int64)
            qkv_layer_ptr = qkv_w_ptr + wide * QKV * HIDDEN
            o_ptr = o_w_ptr + wide * HIDDEN * Q
            gate_ptr = gate_up_w_ptr + wide * 2 * INTERMEDIATE * HIDDEN
            down_ptr = down_w_ptr + wide * HIDDEN * INTERMEDIATE
            k_ptr = keys_ptr + wide * KV_HEADS * positions * D
            v_ptr = values_ptr + wide * KV_HEADS * positions * D

            # norm + QKV
            first, stride, beyond = share(program, QKV, QKV_ROWS, GRID)
            stream(
                qkv_tile, qkv_ahead, first, stride, beyond, x_ptr,
                attn_norm_ptr + layer * HIDDEN, qkv_layer_ptr, qkv_bias_ptr + layer * QKV * BIAS,
                qkv_ptr, EPS, QKV, HIDDEN, QKV_ROWS, QKV_K, PROJECT, BIAS,
            )  # fmt: skip
            grid_arrive(sync_ptr, DEVICE)
            k, v = history_tiles(
                k_ptr, v_ptr, tl.minimum(program, PARTS - 1),
                position, positions, D, BLOCK_D, BLOCK_N, SPLITS,
            )  # fmt: skip
            rounds += 1
            place = place_of(_QKV, layer, count)
            grid_wait(sync_ptr, rounds, timeout_ns, fault_ptr, place, GRID, DEVICE)

            # RoPE + KV append, attention, combine
            place = place_of(_ATTENTION, layer, count)
            attention_stage(
                k, v, program, k_ptr, v_ptr, position, positions,
                qkv_ptr, q_gain_ptr + layer * D * QK_NORM, k_gain_ptr + layer * D * QK_NORM,
                cos_ptr + position * (D // 2), sin_ptr + position * (D // 2),
                part_out_ptr, part_max_ptr, part_sum_ptr, attended_ptr,
                sync_ptr, count * LAYERS + layer + 1, timeout_ns, fault_ptr, place,
                HEADS, KV_HEADS, D, BLOCK_D, BLOCK_G, BLOCK_N, SPLITS, BLOCK_S, BLOCK_C,
                EPS, QK_NORM, SCALE, GRID, DEVICE,
            )  # fmt: skip
            grid_arrive(sync_ptr, DEVICE)
            first, stride, beyond = share(program, HIDDEN, O_ROWS, GRID)
            o_tile, o_ahead = first_tiles(
                o_ptr, first, stride, beyond, HIDDEN, Q, O_ROWS, O_K, RESIDUAL
            )
            rounds += 1
            grid_wait(sync_ptr, rounds, timeout_ns, fault_ptr, place, GRID, DEVICE)

            # output projection + residual
            stream(
                o_tile, o_ahead, first, stride, beyond, attended_ptr,
                attended_ptr, o_ptr, attended_ptr, x_ptr, EPS, HIDDEN, Q, O_ROWS, O_K, RESIDUAL,
            )  # fmt: skip
            grid_arrive(sync_ptr, DEVICE)
            first, stride, beyond = share(program, INTERMEDIATE, PAIRS, GRID)
            gate_tile, gate_ahead = first_tiles(
                gate_ptr, first, stride, beyond, INTERMEDIATE, HIDDEN, GATE_ROWS, GATE_K, GATED,
                AHEAD, DEVICE,
            )  # fmt: skip
            rounds += 1
            place = place_of(_OUTPUT, layer, count)
            grid_wait(sync_ptr, rounds, timeout_ns, fault_ptr, place, GRID, DEVICE)

            # norm + gate/up + SiLU
            stream(
                gate_tile, gate_ahead, first, stride, beyond, x_ptr,
                mlp_norm_ptr + layer * HIDDEN, gate_ptr, x_ptr, activated_ptr,
                EPS, INTERMEDIATE, HIDDEN, GATE_ROWS, GATE_K, GATED,
            )  # fmt: skip
            grid_arrive(sync_ptr, DEVICE)
            first, stride, beyond = share(program, HIDDEN, DOWN_ROWS, GRID)
            down_tile, down_ahead = first_tiles(
                down_ptr, first, stride, beyond, HIDDEN, INTERMEDIATE, DOWN_ROWS, DOWN_K, RESIDUAL,
                AHEAD, DEVICE,
            )  # fmt: skip
            rounds += 1
            place = place_of(_GATE_UP, layer, count)
            grid_wait(sync_ptr, rounds, timeout_ns, fault_ptr, place, GRID, DEVICE)

            # down projection + residual
            stream(
                down_tile, down_ahead, first, stride, beyond,
                activated_ptr, activated_ptr, down_ptr, activated_ptr, x_ptr,
                EPS, HIDDEN, INTERMEDIATE, DOWN_ROWS, DOWN_K, RESIDUAL,
            )  # fmt: skip
            grid_arrive(sync_ptr, DEVICE)
            first, stride, beyond = share(program, QKV, QKV_ROWS, GRID)
            qkv_tile, qkv_ahead = first_tiles(
                qkv_w_ptr + tl.minimum(wide + 1, LAYERS - 1) * QKV * HIDDEN,
                first, stride, beyond, QKV, HIDDEN, QKV_ROWS, QKV_K, PROJECT, AHEAD, DEVICE,
            )  # fmt: skip
            rounds += 1
            place = place_of(_DOWN, layer, count)
            grid_wait(sync_ptr, rounds, timeout_ns, fault_ptr, place, GRID, DEVICE)

        # norm + LM head, and each program's part of the draw
        if program == LAST:
            asked = tl.load(box_ptr + STOP, volatile=True) == tl.load(run_ptr + DOORBELL)
            tl.store(sync_ptr + HALT, asked.to(tl.int32))
        begin = program * SEGMENT
        beyond = tl.minimum(begin + SEGMENT, VOCAB)
        head_tile, head_ahead = first_tiles(
            head_w_ptr, begin, HEAD_ROWS, beyond, VOCAB, HIDDEN, HEAD_ROWS, HEAD_K, PROJECT
        )
        stream(
            head_tile, head_ahead, begin, HEAD_ROWS, beyond, x_ptr, norm_ptr, head_w_ptr,
            x_ptr, logits_ptr, EPS, VOCAB, HIDDEN, HEAD_ROWS, HEAD_K, PROJECT,
        )  # fmt: skip
        segment_draw(
            program, begin, beyond, logits_ptr, seen_ptr, best_ptr, best_id_ptr, top_ptr,
            exp_max_ptr, exp_sum_ptr, seed, position + 1, temperature, penalty, BLOCK_SEGMENT,
        )  # fmt: skip
        rounds += 1
        grid_barrier(
            sync_ptr, rounds, timeout_ns, fault_ptr, place_of(_HEAD, LAYERS, count), GRID,
            DEVICE,
        )  # fmt: skip

        # sample
        token = settle(best_ptr, best_id_ptr, GRID, VOCAB, BLOCK_P)
        top_k = tl.load(run_ptr + TOP_K)
        top_p = tl.load(numbers_ptr + TOP_P).to(tl.float32)
        min_p = tl.load(numbers_ptr + MIN_P)
        if (temperature > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0)):
            place = place_of(_SAMPLE, LAYERS, count)
            top = largest_score(top_ptr, GRID, BLOCK_P)
            threshold = tl.full([], _INT_MIN, tl.int32)
            if top_k > 0:
                threshold, rounds = threshold_stage(
                    program, threshold, top_k.to(tl.float32), rounds, sync_ptr, fault_ptr,
                    timeout_ns, place, logits_ptr, seen_ptr, penalty, temperature, top,
                    above_ptr, mass_ptr, VOCAB, BLOCK, CHUNK, BLOCKS, BLOCK_B, True, GRID, DEVICE,
                )  # fmt: skip
            if top_p < 1:
                threshold, rounds = threshold_stage(
                    program, threshold, top_p, rounds, sync_ptr, fault_ptr,
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
            rounds += 1
            grid_barrier(sync_ptr, rounds, timeout_ns, fault_ptr, place, GRID, DEVICE)
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
                    token, logits_ptr, exp_max_ptr, exp_sum_ptr, GRID, BLOCK_P
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
