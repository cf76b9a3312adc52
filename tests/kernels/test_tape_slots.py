"""The protocol of the slots for keys and values, at random schedules, with barriers as the GPU has.

A barrier's phase is only known by its parity. The model is of kernels/tape_attention.cuh (`feed`)
and tape_step.cuh (`attend`): tile t of an item lies in slot t % SLOTS.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kernels.tape_plan import WARPS

LAYERS, KV_SLOTS = 6, 4
Turn = Iterator[bool]  # one step each; False while it has to wait


class Barrier:
    """An mbarrier that one arrival completes."""

    def __init__(self) -> None:
        self.completed = 0

    def passed(self, parity: int) -> bool:
        """What try_wait.parity answers: was the phase before this one of that parity?"""
        return self.completed % 2 != parity


class Slots:
    """Shared memory: what lies in each slot, and its barriers. Copies land when they like."""

    def __init__(self) -> None:
        self.full = [Barrier() for _ in range(KV_SLOTS)]
        self.empty = [Barrier() for _ in range(KV_SLOTS)]
        self.held: list[tuple[int, int] | None] = [None] * KV_SLOTS
        self.under_way: list[tuple[int, tuple[int, int]]] = []

    def land(self, choice: random.Random) -> None:
        """One of the copies under way arrives."""
        slot, tile = self.under_way.pop(choice.randrange(len(self.under_way)))
        self.held[slot] = tile
        self.full[slot].completed += 1


def feeder(slots: Slots, tiles: int) -> Turn:
    used, parity = [False] * KV_SLOTS, [0] * KV_SLOTS
    for layer in range(LAYERS):
        for tile in range(tiles):
            slot = tile % KV_SLOTS
            while used[slot] and not slots.empty[slot].passed(parity[slot] ^ 1):
                yield False
            used[slot] = True
            parity[slot] ^= 1
            slots.under_way.append((slot, (layer, tile)))
            yield True


def consumer(
    slots: Slots, tiles: int, warp: int, consumers: int, done: list[int], seen: list[int]
) -> Turn:
    """A warp: every `consumers`-th tile; all warps meet after each layer."""
    uses = [layer * tiles for layer in range(LAYERS)]
    parity = 0
    for layer in range(LAYERS):
        for tile in range(warp, tiles, consumers):
            slot = tile % KV_SLOTS
            if consumers == KV_SLOTS:
                wanted = parity
                parity ^= 1
            else:  # by the count of all tiles: for a warp that has not seen every phase
                wanted = (uses[layer] + tile) // KV_SLOTS % 2
            while not slots.full[slot].passed(wanted):
                yield False
            assert slots.held[slot] == (layer, tile), "read before it was there"
            seen[0] += 1
            slots.empty[slot].completed += 1
            yield True
        done[layer] += 1
        while done[layer] < WARPS:
            yield False


def run(tiles: int, consumers: int, seed: int) -> int:
    """Tiles read in a whole pass at one random schedule; AssertionError where it goes wrong."""
    choice, slots, done, seen = random.Random(seed), Slots(), [0] * LAYERS, [0]
    turns = [feeder(slots, tiles)]
    for warp in range(WARPS):
        mine = warp if warp < consumers else tiles
        turns.append(consumer(slots, tiles, mine, consumers, done, seen))
    idle = 0
    while turns:
        if slots.under_way and choice.random() < 0.2:
            slots.land(choice)
            idle = 0
        turn = choice.choice(turns)
        try:
            idle = 0 if next(turn) else idle + 1
        except StopIteration:
            turns.remove(turn)
            idle = 0
        assert idle < 2000, "everybody waits"
    return seen[0]


@pytest.mark.parametrize("tiles", [0, 1, 3, 4, 5, 8, 13, 32])
def test_every_tile_is_read_once_and_only_when_it_is_there(tiles: int) -> None:
    for seed in range(25):
        assert run(tiles, KV_SLOTS, seed) == tiles * LAYERS


def test_the_model_shows_what_goes_wrong_when_other_warps_take_a_slots_next_tile() -> None:
    """All eight warps over four slots: right up to four tiles, wrong beyond."""
    assert all(run(4, WARPS, seed) == 4 * LAYERS for seed in range(25))
    failures = 0
    for seed in range(25):
        try:
            run(8, WARPS, seed)
        except AssertionError:
            failures += 1
    assert failures > 0
