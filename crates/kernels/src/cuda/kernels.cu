// Every kernel, in one translation unit.
#include "portable.cuh"

#include "../attention/prefill.cu"
#include "../elementwise.cu"
