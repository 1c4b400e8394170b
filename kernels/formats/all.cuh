// Every format by its number. A kernel is compiled for the formats of one launch: WITH_<name> is defined for each.

#pragma once

#ifdef WITH_F16
#include "formats/f16.cuh"
#endif
#ifdef WITH_F32
#include "formats/f16.cuh"
#endif
#ifdef WITH_Q4_0
#include "formats/q4_0.cuh"
#endif
#ifdef WITH_Q4_1
#include "formats/q4_0.cuh"
#endif
#ifdef WITH_Q5_0
#include "formats/q4_0.cuh"
#endif
#ifdef WITH_Q5_1
#include "formats/q4_0.cuh"
#endif
#ifdef WITH_Q8_0
#include "formats/q8_0.cuh"
#endif
#ifdef WITH_Q4_K
#include "formats/q4_k.cuh"
#endif
#ifdef WITH_Q5_K
#include "formats/q5_k.cuh"
#endif
#ifdef WITH_Q6_K
#include "formats/q6_k.cuh"
#endif
#ifdef WITH_Q3_K
#include "formats/q3_k.cuh"
#endif
#ifdef WITH_IQ4_NL
#include "formats/iq4.cuh"
#endif
#ifdef WITH_IQ4_XS
#include "formats/iq4.cuh"
#endif
#ifdef WITH_MXFP4
#include "formats/mxfp4.cuh"
#endif
#ifdef WITH_IQ3_S
#include "formats/iq3.cuh"
#endif
#ifdef WITH_IQ3_XXS
#include "formats/iq3.cuh"
#endif
#ifdef WITH_Q2_K
#include "formats/q2_k.cuh"
#endif
#ifdef WITH_IQ2_XXS
#include "formats/iq2.cuh"
#endif
#ifdef WITH_IQ2_XS
#include "formats/iq2.cuh"
#endif
#ifdef WITH_IQ2_S
#include "formats/iq2.cuh"
#endif
#ifdef WITH_IQ1_S
#include "formats/iq1.cuh"
#endif
#ifdef WITH_IQ1_M
#include "formats/iq1.cuh"
#endif
#ifdef WITH_TQ1_0
#include "formats/ternary.cuh"
#endif
#ifdef WITH_TQ2_0
#include "formats/ternary.cuh"
#endif
#ifdef WITH_NVFP4
#include "formats/nvfp4.cuh"
#endif
#ifdef WITH_Q1_0
#include "formats/q1_0.cuh"
#endif
#ifdef WITH_Q2_0
#include "formats/ternary.cuh"
#endif
#ifdef WITH_INT4_32
#include "formats/int4.cuh"
#endif
#ifdef WITH_INT4_64
#include "formats/int4.cuh"
#endif
#ifdef WITH_INT4_128
#include "formats/int4.cuh"
#endif
#ifdef WITH_INT4S_128
#include "formats/int4.cuh"
#endif
#ifdef WITH_F8_E4M3
#include "formats/f8.cuh"
#endif

// Call `work.template operator()<F>()` for every format of the program, one after another.
template <class Work> __device__ __forceinline__ void for_each_format(const Work& work) {
#ifdef WITH_F16
    work.template operator()<F16>();
#endif
#ifdef WITH_F32
    work.template operator()<F32>();
#endif
#ifdef WITH_Q4_0
    work.template operator()<Q4_0>();
#endif
#ifdef WITH_Q4_1
    work.template operator()<Q4_1>();
#endif
#ifdef WITH_Q5_0
    work.template operator()<Q5_0>();
#endif
#ifdef WITH_Q5_1
    work.template operator()<Q5_1>();
#endif
#ifdef WITH_Q8_0
    work.template operator()<Q8_0>();
#endif
#ifdef WITH_Q4_K
    work.template operator()<Q4_K>();
#endif
#ifdef WITH_Q5_K
    work.template operator()<Q5_K>();
#endif
#ifdef WITH_Q6_K
    work.template operator()<Q6_K>();
#endif
#ifdef WITH_Q3_K
    work.template operator()<Q3_K>();
#endif
#ifdef WITH_IQ4_NL
    work.template operator()<IQ4_NL>();
#endif
#ifdef WITH_IQ4_XS
    work.template operator()<IQ4_XS>();
#endif
#ifdef WITH_MXFP4
    work.template operator()<MXFP4>();
#endif
#ifdef WITH_IQ3_S
    work.template operator()<IQ3_S>();
#endif
#ifdef WITH_IQ3_XXS
    work.template operator()<IQ3_XXS>();
#endif
#ifdef WITH_Q2_K
    work.template operator()<Q2_K>();
#endif
#ifdef WITH_IQ2_XXS
    work.template operator()<IQ2_XXS>();
#endif
#ifdef WITH_IQ2_XS
    work.template operator()<IQ2_XS>();
#endif
#ifdef WITH_IQ2_S
    work.template operator()<IQ2_S>();
#endif
#ifdef WITH_IQ1_S
    work.template operator()<IQ1_S>();
#endif
#ifdef WITH_IQ1_M
    work.template operator()<IQ1_M>();
#endif
#ifdef WITH_TQ1_0
    work.template operator()<TQ1_0>();
#endif
#ifdef WITH_TQ2_0
    work.template operator()<TQ2_0>();
#endif
#ifdef WITH_NVFP4
    work.template operator()<NVFP4>();
#endif
#ifdef WITH_Q1_0
    work.template operator()<Q1_0>();
#endif
#ifdef WITH_Q2_0
    work.template operator()<Q2_0>();
#endif
#ifdef WITH_INT4_32
    work.template operator()<INT4_32>();
#endif
#ifdef WITH_INT4_64
    work.template operator()<INT4_64>();
#endif
#ifdef WITH_INT4_128
    work.template operator()<INT4_128>();
#endif
#ifdef WITH_INT4S_128
    work.template operator()<INT4S_128>();
#endif
#ifdef WITH_F8_E4M3
    work.template operator()<F8_E4M3>();
#endif
}
