// How wide the next pass of a drafted reply should be: engine/speculation.py's `Pace` in float32.
#pragma once
#include "tape_exchange.cuh"

constexpr float FIRST_ACCEPTANCE = 0.5f, RATE = 0.125f, FIRST_COST_OF_A_COLUMN = 0.1f;
constexpr float WORTH_IT = 1.02f;

struct Pace {
    float acceptance;
    float cost[MAX_WIDTH + 1];  // of a pass by width; 0 is not known yet

    __device__ __forceinline__ float cost_of(int width) const {
        if (cost[width] != 0.0f) return cost[width];
        for (int nearest = width - 1; nearest > 0; nearest--)
            if (cost[nearest] != 0.0f)
                return cost[nearest] * (1.0f + FIRST_COST_OF_A_COLUMN * (width - nearest));
        return 1.0f + FIRST_COST_OF_A_COLUMN * (width - 1);
    }

    // By a whole warp, a lane for each width: the one that promises most tokens a second when
    // `drafted` tokens are at hand; among equals the narrowest.
    __device__ __forceinline__ int width(int drafted, int lane) const {
        const int mine = min(max(lane, 1), MAX_WIDTH);
        float expected = 1.0f, right = 1.0f;
        for (int i = 2; i <= mine; i++) {
            right *= acceptance;
            expected += right;
        }
        int best = 1;
        float most = WORTH_IT / cost_of(1);
        const float rate = expected / cost_of(mine);
        if (lane > 1 && lane <= min(drafted + 1, MAX_WIDTH) && rate > most) {
            best = lane;
            most = rate;
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) {
            const float its_most = __shfl_xor_sync(~0u, most, mask);
            const int its_best = __shfl_xor_sync(~0u, best, mask);
            if (its_most > most || (its_most == most && its_best < best)) {
                most = its_most;
                best = its_best;
            }
        }
        return best;
    }

    __device__ __forceinline__ void saw(int accepted, bool rejected) {
        for (int i = 0; i < accepted; i++) acceptance += RATE * (1.0f - acceptance);
        if (rejected) acceptance -= RATE * acceptance;
    }

    __device__ __forceinline__ void took(int width, float its_cost) {
        const float known = cost[width];
        cost[width] =
            known != 0.0f ? known + RATE * (min(its_cost, 2.0f * known) - known) : its_cost;
    }
};
