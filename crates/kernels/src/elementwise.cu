// Element by element.
#include "cuda/packs.cuh"
#include "elementwise/activation.cuh"

struct ElementwiseParameters {
    const void* a;
    const void* b;
    void* output;
    uint64_t elements;
    // Whole packs among the elements; 0 where addresses are not aligned to them.
    uint64_t packs;
    // What is multiplied by, or the cap.
    float number;
    uint32_t activation;
};
struct SplitParameters {
    const float* x;
    Bf16* parts[3];
    uint64_t elements;
    uint64_t packs;
};
struct AddBiasParameters {
    void* x;
    const float* bias;
    uint64_t rows;
    uint32_t width;
    // Whether whole packs make a row, and are aligned.
    uint32_t packed;
};

namespace elementwise {

// Packs that a thread loads before it stores any: enough bytes under way to hide what memory takes to answer.
constexpr int AT_ONCE = 2;

DEVICE uint64_t thread_of_grid() { return static_cast<uint64_t>(block_x()) * block_threads() + thread_index(); }
DEVICE uint64_t threads_of_grid() { return static_cast<uint64_t>(grid_x()) * block_threads(); }

// output = f(a, b): packs first, then what is left one by one. `output` may be `a` or `b`.
template <typename A, typename B, typename Output, typename F>
DEVICE void combine(const ElementwiseParameters& p, F f) {
    constexpr int size = packs::SIZE<A, B, Output>;
    const A* a = static_cast<const A*>(p.a);
    const B* b = static_cast<const B*>(p.b);
    Output* output = static_cast<Output*>(p.output);
    const uint64_t first = thread_of_grid(), stride = threads_of_grid();
    for (uint64_t pack = first; pack < p.packs; pack += AT_ONCE * stride) {
        float x[AT_ONCE][size], y[AT_ONCE][size];
        UNROLLED for (int i = 0; i < AT_ONCE; i++) {
            const uint64_t at = (pack + i * stride) * size;
            if (pack + i * stride < p.packs) packs::load(a + at, x[i]), packs::load(b + at, y[i]);
        }
        UNROLLED for (int i = 0; i < AT_ONCE; i++) {
            const uint64_t at = (pack + i * stride) * size;
            if (pack + i * stride < p.packs) {
                UNROLLED for (int j = 0; j < size; j++) x[i][j] = f(x[i][j], y[i][j]);
                packs::store(output + at, x[i]);
            }
        }
    }
    for (uint64_t i = p.packs * size + first; i < p.elements; i += stride)
        output[i] = rounded<Output>(f(to_float(a[i]), to_float(b[i])));
}
// output = f(a); that b is a as well costs nothing, since what is not used is not loaded.
template <typename A, typename Output, typename F>
DEVICE void map(const ElementwiseParameters& p, F f) {
    combine<A, A, Output>(p, [f](float x, float) { return f(x); });
}

// Calls `work` with the activation function of that number: one loop for each, without a choice inside it.
template <typename Work>
DEVICE void with_activation(uint32_t number, Work work) {
    if (number == 0) work([](float x) { return activation::silu(x); });
    if (number == 1) work([](float x) { return activation::gelu(x); });
    if (number == 2) work([](float x) { return activation::gelu_tanh(x); });
}
template <typename T>
DEVICE void gate(const ElementwiseParameters& p) {
    with_activation(p.activation,
                    [&p](auto f) { combine<T, T, T>(p, [f](float gate, float up) { return f(gate) * up; }); });
}
template <typename T>
DEVICE void activate(const ElementwiseParameters& p) {
    with_activation(p.activation, [&p](auto f) { map<T, T>(p, f); });
}
template <typename From, typename To>
DEVICE void convert(const ElementwiseParameters& p) {
    map<From, To>(p, [](float x) { return x; });
}

DEVICE void split(float x, float (&part)[3]) {
    const bool infinite = fabsf(x) == infinity();
    // The largest numbers would round to infinity, which has no rest; the next smaller one in bf16 has.
    const float most = float_of_bits(0x7f7f0000u);
    const float near = infinite ? x : x > most ? most : x < -most ? -most : x;
    part[0] = to_float(to_bf16(near));
    // Both differences are exact.
    const float rest = infinite ? 0.0f : x - part[0];
    part[1] = to_float(to_bf16(rest));
    part[2] = rest - part[1];
}

template <typename T>
DEVICE void add_bias(const AddBiasParameters& p) {
    constexpr int size = packs::SIZE<T, float>;
    T* x = static_cast<T*>(p.x);
    const unsigned column = block_x() * block_threads() + thread_index();
    if (p.packed) {
        if (column * size >= p.width) return;
        float bias[size];
        packs::load(p.bias + column * size, bias);
        for (uint64_t row = block_y(); row < p.rows; row += grid_y()) {
            T* at = x + row * p.width + column * size;
            float numbers[size];
            packs::load(at, numbers);
            UNROLLED for (int i = 0; i < size; i++) numbers[i] += bias[i];
            packs::store(at, numbers);
        }
    } else {
        if (column >= p.width) return;
        const float bias = p.bias[column];
        for (uint64_t row = block_y(); row < p.rows; row += grid_y()) {
            T* at = x + row * p.width + column;
            *at = rounded<T>(to_float(*at) + bias);
        }
    }
}

}  // namespace elementwise

KERNEL(add_f32, ElementwiseParameters, 256) {
    elementwise::combine<float, float, float>(parameters, [](float a, float b) { return a + b; });
}
KERNEL(add_bf16, ElementwiseParameters, 256) {
    elementwise::combine<float, Bf16, float>(parameters, [](float a, float b) { return a + b; });
}
KERNEL(scale_f32, ElementwiseParameters, 256) {
    const float factor = parameters.number;
    elementwise::map<float, float>(parameters, [factor](float x) { return x * factor; });
}
KERNEL(scale_bf16, ElementwiseParameters, 256) {
    const float factor = parameters.number;
    elementwise::map<Bf16, Bf16>(parameters, [factor](float x) { return x * factor; });
}
KERNEL(soft_cap_f32, ElementwiseParameters, 256) {
    const float cap = parameters.number;
    elementwise::map<float, float>(parameters, [cap](float x) { return cap * tanhf(x / cap); });
}
KERNEL(convert_f32_f32, ElementwiseParameters, 256) { elementwise::convert<float, float>(parameters); }
KERNEL(convert_f32_bf16, ElementwiseParameters, 256) { elementwise::convert<float, Bf16>(parameters); }
KERNEL(convert_bf16_f32, ElementwiseParameters, 256) { elementwise::convert<Bf16, float>(parameters); }
KERNEL(convert_bf16_bf16, ElementwiseParameters, 256) { elementwise::convert<Bf16, Bf16>(parameters); }
KERNEL(gate_f32, ElementwiseParameters, 256) { elementwise::gate<float>(parameters); }
KERNEL(gate_bf16, ElementwiseParameters, 256) { elementwise::gate<Bf16>(parameters); }
KERNEL(activate_f32, ElementwiseParameters, 256) { elementwise::activate<float>(parameters); }
KERNEL(activate_bf16, ElementwiseParameters, 256) { elementwise::activate<Bf16>(parameters); }
KERNEL(add_bias_f32, AddBiasParameters, 256) { elementwise::add_bias<float>(parameters); }
KERNEL(add_bias_bf16, AddBiasParameters, 256) { elementwise::add_bias<Bf16>(parameters); }

KERNEL(split_f32, SplitParameters, 256) {
    const SplitParameters& p = parameters;
    constexpr int size = packs::SIZE<Bf16>;
    const uint64_t first = elementwise::thread_of_grid(), stride = elementwise::threads_of_grid();
    for (uint64_t pack = first; pack < p.packs; pack += stride) {
        float x[size], parts[3][size];
        packs::load(p.x + pack * size, x);
        UNROLLED for (int i = 0; i < size; i++) {
            float part[3];
            elementwise::split(x[i], part);
            UNROLLED for (int j = 0; j < 3; j++) parts[j][i] = part[j];
        }
        UNROLLED for (int j = 0; j < 3; j++) packs::store(p.parts[j] + pack * size, parts[j]);
    }
    for (uint64_t i = p.packs * size + first; i < p.elements; i += stride) {
        float part[3];
        elementwise::split(p.x[i], part);
        UNROLLED for (int j = 0; j < 3; j++) p.parts[j][i] = to_bf16(part[j]);
    }
}
