// Every kernel, in one translation unit.
#include "portable.cuh"

#include "../attention/spans.cu"
#include "../attention/received.cu"
#include "../elementwise.cu"
