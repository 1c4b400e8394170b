// What waits for a drafter is kept in halves of a sixteenth: the residual stream of a large model may pass the range of
// halves. Twin: HEADROOM of backends/cuda/chunk.py.

#pragma once

#include "common.cuh"

constexpr float HEADROOM = 1.0f / 16, FROM_HEADROOM = 16.0f;
