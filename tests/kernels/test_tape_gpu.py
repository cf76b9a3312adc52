"""The tape kernel on a GPU: stages against the PyTorch twin, wide passes, drafts, waits that end.

What every engine must do is in tests/engine/test_conformance.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.growth import noise_cache
from benchmarks.shapes import SHAPES, random_model
from engine import mailbox as mb
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model, ModelConfig
from engine.models.rope import rope_table
from engine.persistent_tape import PersistentTapeEngine
from engine.sampling import SamplingParams
from engine.speculation import Speculation
from engine.weights import as_weights
from kernels import reference as twin
from kernels.tape_plan import folds
from kernels.tape_probe import copied_bytes_per_s

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        PersistentTapeEngine.unavailable() is not None,
        reason=f"persistent-tape: {PersistentTapeEngine.unavailable()}",
    ),
]

NINE_HEADS = ModelConfig(
    family="llama", layers=1, hidden=288, intermediate=416, heads=9, kv_heads=3, head_dim=32,
    vocab=384, max_positions=600, rms_eps=1e-5, rope_theta=1e5, tied=True,
)  # fmt: skip
CONFIGS = {
    "nine heads": NINE_HEADS,
    "bias": dataclasses.replace(NINE_HEADS, hidden=96, intermediate=160, heads=6, kv_heads=2,
                                head_dim=16, qkv_bias=True),
    "one key head, normed": dataclasses.replace(NINE_HEADS, hidden=64, intermediate=96, heads=8,
                                                kv_heads=1, head_dim=128, qk_norm=True, tied=False),
    "whole slots": dataclasses.replace(NINE_HEADS, hidden=1024, intermediate=1536, heads=16,
                                       kv_heads=4, head_dim=64, vocab=5000),
    # On 132 multiprocessors: enough of gate and up for a pool, an output row for everybody.
    "pooled": dataclasses.replace(NINE_HEADS, hidden=1088, intermediate=8192, heads=40,
                                  kv_heads=8),
}  # fmt: skip
LIMIT = 1e-4  # relative RMS error; activations have 16 bits of mantissa


def engine_of(config: ModelConfig) -> PersistentTapeEngine:
    SHAPES["under test"] = config
    try:
        return PersistentTapeEngine(random_model("under test", "cuda"), width=8)
    finally:
        del SHAPES["under test"]


@pytest.fixture(scope="module", params=CONFIGS)
def engine(request: pytest.FixtureRequest) -> Iterator[PersistentTapeEngine]:
    made = engine_of(CONFIGS[request.param])
    yield made
    made.close()


def new_cache(engine: PersistentTapeEngine) -> KVCache:
    """Full of NaN: nothing beyond the context may be read."""
    cache = engine.model.new_cache(500)
    cache.k.fill_(float("nan"))
    cache.v.fill_(float("nan"))
    return cache


def ids_of(engine: PersistentTapeEngine, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(count)
    ids = torch.randint(0, engine.model.config.vocab, (count,), generator=generator)
    return [int(i) for i in ids]


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    got, wanted = got.double().cpu().flatten(), wanted.double().cpu().flatten()
    return float((got - wanted).norm() / wanted.norm())


def exchanged(engine: PersistentTapeEngine, name: str) -> torch.Tensor:
    """The values in an exchange of 128-bit words: four of 28 bits, each above four of the epoch."""
    halves = engine.kernel.buffer(name).view(-1, 2)
    parts = [half >> shift & 0xFFFFFFF0 for half in halves.T for shift in (0, 32)]
    bits = torch.stack(parts, dim=1).flatten()
    return torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)


def test_every_stage_against_its_twin(engine: PersistentTapeEngine) -> None:
    c, w = engine.model.config, engine.model.weights
    cache, ids = new_cache(engine), ids_of(engine, 150)
    logits = engine.logits(cache, [*ids[:3]])[-1]
    for token_id in ids[3:]:  # into the second tile and beyond the first split
        logits = engine.logits(cache, [token_id])[-1]
    position = cache.length - 1
    x = twin.embed(w.embed, torch.tensor([ids[-1]], device="cuda"))
    qkv = twin.linear(twin.rms_norm(x, w.attn_norm[0].float(), c.rms_eps), w.qkv[0])
    if w.qkv_bias is not None:
        qkv = qkv + w.qkv_bias[0].float()
    assert error(exchanged(engine, "qkv"), qkv) < LIMIT
    cos, sin = rope_table(c, position + 1, torch.float32, "cuda")
    half, group = c.head_dim // 2, c.heads // c.kv_heads
    q = qkv[:, : c.q_size].view(1, c.heads, c.head_dim)
    if w.q_norm is not None:
        q = twin.rms_norm(q, w.q_norm[0].float(), c.rms_eps)
    q = twin.rope(q, cos[position:, :half], sin[position:, :half])[0]
    history = slice(0, position + 1)
    heads = [
        twin.attention(q[h], cache.k[0, h // group, history], cache.v[0, h // group, history])
        for h in range(c.heads)
    ]
    attended = torch.cat(heads)[None]
    if not folds(c, 1):  # else nobody writes it
        assert error(exchanged(engine, "attended"), attended) < LIMIT
    middle = x + twin.linear(attended, w.o[0])
    assert error(exchanged(engine, "middle"), middle) < LIMIT
    normed = twin.rms_norm(middle, w.mlp_norm[0].float(), c.rms_eps)
    gate, up = twin.linear(normed, w.gate_up[0]).chunk(2, -1)
    after = middle + twin.linear(twin.silu_multiply(gate, up), w.down[0])
    assert error(exchanged(engine, "next"), after) < LIMIT
    final = twin.rms_norm(after, w.norm.float(), c.rms_eps)
    assert error(logits, twin.linear(final, w.lm_head)) < LIMIT


@pytest.mark.parametrize("length", [2, 5, 9, 17, 65])
def test_a_prompt_in_wide_passes_is_the_prompt_token_by_token(
    engine: PersistentTapeEngine, length: int
) -> None:
    ids = ids_of(engine, length)
    wide, narrow = new_cache(engine), new_cache(engine)
    list(engine.decode(wide, ids, SamplingParams(max_tokens=1)))
    logits = engine.kernel.logits.clone()
    expected = engine.logits(narrow, ids)[-1]
    assert error(logits, expected) < 0.01  # a key may round to bfloat16's neighbour
    for mine, other in ((wide.k, narrow.k), (wide.v, narrow.v)):
        assert error(mine[:, :, :length].float(), other[:, :, :length].float()) < 0.01


def test_replies_are_the_references_to_within_the_caches_rounding(
    engine: PersistentTapeEngine,
) -> None:
    model = engine.model
    tensors = {name: tensor.float() for name, tensor in model.weights.tensors().items()}
    reference = EagerEngine(Model(model.name, model.config, as_weights(tensors)))
    for length in (1, 16, 130, 300):
        ids = ids_of(engine, length)
        reply = [t.id for t in engine.decode(new_cache(engine), ids, SamplingParams(max_tokens=40))]
        whole = [*ids, *reply]
        rows = reference.logits(reference.model.new_cache(500), whole[:-1])[length - 1 :]
        assert error(engine.kernel.logits, rows[-1]) < 0.03
        for row, token_id in zip(rows, reply, strict=True):
            assert float(row.max() - row[token_id]) < 0.4


def test_histories_of_more_tiles_than_slots() -> None:
    """64 key heads leave each two blocks, so that 500 positions are 16 tiles a block."""
    engine = engine_of(dataclasses.replace(NINE_HEADS, heads=64, kv_heads=64, head_dim=16))
    eager = EagerEngine(engine.model)
    for length in (127, 128, 129, 300, 499):
        ids = ids_of(engine, length)
        for _ in range(5):
            got = engine.logits(filled(engine, ids[:-1]), ids[-1:])[-1]
            wanted = eager.logits(filled(engine, ids[:-1]), ids[-1:])[-1]
            assert error(got, wanted) < 0.03
    engine.close()


def test_contexts_to_32768() -> None:
    """Attention over noise in the cache, from a block's share of one tile to more than it holds."""
    positions = 32768
    engine = engine_of(dataclasses.replace(NINE_HEADS, max_positions=positions))
    eager, token = EagerEngine(engine.model), [7]
    cache = noise_cache(engine.model, positions)
    for length in (positions - 2, 8191, 1000, 17, 16, 15, 1):  # each step writes at its own place
        cache.token_ids[:] = [0] * length
        got = engine.logits(cache, token)[-1]
        cache.truncate(length)
        assert error(got, eager.logits(cache, token)[-1]) < 0.03
    engine.close()


def filled(engine: PersistentTapeEngine, ids: list[int]) -> KVCache:
    cache = new_cache(engine)
    engine.prefill(cache, ids)
    return cache


def test_replies_are_identical_from_run_to_run(engine: PersistentTapeEngine) -> None:
    params = SamplingParams(max_tokens=60, temperature=0.9, top_p=0.9, seed=2**63 + 1)
    replies = [
        [(t.id, t.logprob) for t in engine.decode(new_cache(engine), ids_of(engine, 40), params)]
        for _ in range(3)
    ]
    assert replies[0] == replies[1] == replies[2]


def test_a_wait_that_takes_too_long_names_its_place_and_the_engine_goes_on() -> None:
    engine = engine_of(dataclasses.replace(NINE_HEADS, layers=2))
    words, plan = engine.resident.words, engine.kernel.buffer("plan")
    patience, words[mb.TIMEOUT_NS] = int(words[mb.TIMEOUT_NS]), 50_000_000
    slices = int(plan[0, 5])
    plan[0, 5] = 0  # a block that owes the others its columns of the MLP
    with pytest.raises(UnpausedError, match=r"in stage 'down projection', layer 0, token 0"):
        list(engine.decode(new_cache(engine), [1], SamplingParams(max_tokens=5)))
    plan[0, 5], words[mb.TIMEOUT_NS] = slices, patience
    assert len(list(engine.decode(new_cache(engine), [1], SamplingParams(max_tokens=5)))) == 5
    engine.close()


@pytest.fixture(scope="module")
def drafting(engine: PersistentTapeEngine) -> Iterator[PersistentTapeEngine]:
    """The same model with drafts."""
    made = PersistentTapeEngine(engine.model, speculation=Speculation("ngram"), turns=False)
    yield made
    made.close()


HISTORY, REPLY = 150, 40
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 2**63 + 5},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": 3},  # a penalty would see the planted
]


def planted(engine: PersistentTapeEngine, text: list[int], wrong_every: int) -> KVCache:
    """`HISTORY` tokens in the cache, whose list says something in which `text` is looked up."""
    ids, copied = ids_of(engine, HISTORY), list(text)
    cache = filled(engine, ids[:-1])
    for at in range(2, len(copied), wrong_every or len(copied)):
        copied[at] = (copied[at] + bool(wrong_every)) % engine.model.config.vocab
    held = [ids[-1], *copied]
    cache.token_ids[HISTORY - 1 - len(held) :] = held
    return cache


@pytest.mark.parametrize("options", SAMPLERS)
def test_drafts_do_not_change_the_text(
    engine: PersistentTapeEngine, drafting: PersistentTapeEngine, options: dict[str, Any]
) -> None:
    """All right, wrong now and then, all wrong; where rounding may choose, near ties may differ."""
    params, ids = SamplingParams(max_tokens=REPLY, **options), ids_of(engine, HISTORY)
    last = ids[-1:]
    plain = [t.id for t in engine.decode(filled(engine, ids[:-1]), last, params)]
    # The verifying kernel's own text, which it says with drafts and without.
    alone = [t.id for t in drafting.decode(planted(drafting, plain, 1), last, params)]
    same = next((i for i, (a, b) in enumerate(zip(plain, alone, strict=True)) if a != b), REPLY)
    assert same >= 4
    for wrong_every in (0, 3, 7):
        run = drafting.decode(planted(drafting, alone, wrong_every), last, params)
        tokens = list(run)
        assert [t.id for t in tokens] == alone
        counts = run.drafts
        assert counts is not None and counts.passes + counts.accepted == REPLY - 1
        assert run.launches == 1
        if wrong_every == 0:
            assert counts.accepted > 0 and len({t.time_ns for t in tokens}) == counts.passes + 1
        else:
            assert counts.accepted < counts.drafted


def test_drafted_replies_end_where_they_would(
    engine: PersistentTapeEngine, drafting: PersistentTapeEngine
) -> None:
    params, last = SamplingParams(max_tokens=REPLY, temperature=0.8), ids_of(engine, HISTORY)[-1:]
    text = [t.id for t in drafting.decode(planted(drafting, [0], 0), last, params)]
    text = [t.id for t in drafting.decode(planted(drafting, text, 0), last, params)]
    for at in [at for at in range(3, 20) if text.index(text[at]) == at]:
        stops = dataclasses.replace(params, stop_ids=frozenset({text[at]}))
        run = drafting.decode(planted(drafting, text, 0), last, stops)
        assert [t.id for t in run] == text[: at + 1] and run.finish_reason == "eos"
        limited = dataclasses.replace(params, max_tokens=at + 1)
        cache = planted(drafting, text, 0)
        run = drafting.decode(cache, last, limited)
        assert [t.id for t in run] == text[: at + 1] and run.finish_reason == "length"
        assert cache.length == HISTORY + at
    cache = planted(drafting, text, 0)
    run = drafting.decode(cache, last, dataclasses.replace(params, max_tokens=300))
    taken = [next(iter(run)).id]
    run.stop()
    taken += [t.id for t in run]
    assert taken == text[: len(taken)] and len(taken) < 300 and run.finish_reason == "stopped"
    whole = drafting.model.new_cache(HISTORY + 10)
    drafting.prefill(whole, ids_of(drafting, HISTORY)[:-1])
    run = drafting.decode(whole, last, params)
    assert len(list(run)) == 11 and run.finish_reason == "context"


def test_drafted_replies_are_identical_from_run_to_run(drafting: PersistentTapeEngine) -> None:
    """Whatever widths the clock has chosen."""
    params = SamplingParams(max_tokens=60, temperature=0.7, top_p=0.9, seed=17)
    loop = ids_of(drafting, 10) * 4
    replies = [[t.id for t in drafting.decode(new_cache(drafting), loop, params)] for _ in range(5)]
    assert all(reply == replies[0] for reply in replies)


def test_kernels_that_take_turns_say_the_same_every_time(engine: PersistentTapeEngine) -> None:
    """Both are needed: what is planted can be foretold, and then nothing can."""
    made = PersistentTapeEngine(engine.model, speculation=Speculation("ngram"))
    params, last = SamplingParams(max_tokens=100, temperature=0.8, seed=5), ids_of(engine, HISTORY)
    text = [t.id for t in engine.decode(filled(engine, last[:-1]), last[-1:], params)]
    replies = []
    for _ in range(3):
        run = made.decode(planted(made, text[:REPLY], 0), last[-1:], params)
        replies.append([t.id for t in run])
        assert run.finish_reason == "length" and run.drafts is not None
        assert run.launches >= 2 and run.drafts.accepted > 0
    assert replies[0] == replies[1] == replies[2]
    same = [a == b for a, b in zip(text, replies[0], strict=True)]
    assert all(same[:7])  # the same kernel's, up to there
    run = made.decode(planted(made, text[:REPLY], 0), last[-1:], params)
    taken = [next(iter(run)).id for _ in range(20)]
    run.stop()
    assert taken == replies[0][:20] and len(list(run)) == 0
    made.close()


def test_the_probe_reads_all_that_it_is_given() -> None:
    assert copied_bytes_per_s(torch.device("cuda")) > 0
