// Every kernel, in one translation unit.
#include "portable.cuh"

#include "../attention/merge.cu"
#include "../attention/received.cu"
#include "../attention/spans.cu"
#include "../elementwise.cu"
