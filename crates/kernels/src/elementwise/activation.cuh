// Activation functions of an MLP, by their numbers: 0 SiLU, 1 GELU, 2 GELU by tanh.
#pragma once

namespace activation {

// 1 / (1 + e^−x). e^−|x| never overflows: the sigmoid of a negative x is e^x / (1 + e^x).
DEVICE float sigmoid(float x) {
    const float e = expf(-fabsf(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}
DEVICE float silu(float x) { return x * sigmoid(x); }
DEVICE float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.707106781f)); }
// √(8/π): (1 + tanh(u)) / 2 is the sigmoid of 2u.
DEVICE float gelu_tanh(float x) { return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x)); }

// The function of that number, of one x.
DEVICE float of(uint32_t number, float x) {
    if (number == 1) return gelu(x);
    return number == 0 ? silu(x) : gelu_tanh(x);
}

}  // namespace activation
