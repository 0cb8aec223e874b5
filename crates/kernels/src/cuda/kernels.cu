// Every kernel, in one translation unit.
#include "portable.cuh"

#include "../elementwise.cu"

#include "../matmul/blocks.cuh"
#include "../matmul/dequantize.cu"
#include "../matmul/row.cu"
