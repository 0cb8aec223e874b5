// Every kernel, in one translation unit.
#include "portable.cuh"

#include "../distribution.cu"
#include "../attention/prefill.cu"
#include "../attention/merge.cu"
#include "../attention/received.cu"
#include "../attention/spans.cu"
#include "../elementwise.cu"
#include "../elementwise/norm.cu"
#include "../elementwise/rotate.cu"
#include "../trajectory.cu"
#include "store.cu"
