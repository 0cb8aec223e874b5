// Every kernel, in one translation unit.
#include "portable.cuh"

#include "../distribution.cu"
#include "../attention/prefill.cu"
#include "../elementwise.cu"
#include "../elementwise/norm.cu"
#include "../elementwise/rotate.cu"
#include "../trajectory.cu"
#include "store.cu"
