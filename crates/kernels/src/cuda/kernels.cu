// Every kernel, in one translation unit.
#include "portable.cuh"

#include "../elementwise.cu"
