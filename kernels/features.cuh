// Pending features are stored in f16 as a sixteenth of their value: the residual stream of a large model may exceed the
// range of f16. Twin: HEADROOM of backends/cuda/chunk.py.

#pragma once

#include "common.cuh"

constexpr float HEADROOM = 1.0f / 16, FROM_HEADROOM = 16.0f;
