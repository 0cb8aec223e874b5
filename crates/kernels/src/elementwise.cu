// Element by element.
struct AddParameters {
    const float* a;
    const void* b;
    float* output;
    uint64_t elements;
};
template <typename B>
DEVICE void add(const AddParameters& p) {
    const B* b = static_cast<const B*>(p.b);
    const uint64_t stride = static_cast<uint64_t>(grid_x()) * block_threads();
    for (uint64_t i = static_cast<uint64_t>(block_x()) * block_threads() + thread_index(); i < p.elements; i += stride)
        p.output[i] = p.a[i] + to_float(b[i]);
}
KERNEL(add_f32, AddParameters, 256) { add<float>(parameters); }
KERNEL(add_bf16, AddParameters, 256) { add<Bf16>(parameters); }
