// Runs kernels on the CPU, so that their every index is tested where there is no GPU.
//
// Threads of a block are fibers. One runs until it comes to a barrier or a collective of its warp; which goes on is drawn at
// random, so that a missing barrier shows as a wrong result. Shared memory begins as NaN, with a border that must stay as
// it was; asynchronous copies arrive no sooner than they are waited for.
#include "kernels.cu"

#include <stdio.h>
#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#include <map>
#include <memory>
#include <string>
#include <vector>

#ifdef __x86_64__
// Saves what a function must leave as it was, and goes on from where the other stack was left (System V ABI). The system's
// own way asks the kernel for the signal mask each time.
asm(R"(
    .text
    .type layerscope_switch_stack, @function
layerscope_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size layerscope_switch_stack, .-layerscope_switch_stack
)");
extern "C" void layerscope_switch_stack(void** from, void** to);
#endif

namespace emulator {

thread_local Thread current;

namespace {

constexpr size_t STACK = 256 << 10, BORDER = 256, SLOT = 64;
constexpr unsigned char POISON = 0xff, BORDER_BYTE = 0xa5;

#ifdef __x86_64__
// A place on a stack where a thread was left.
using Place = void*;
void switch_stack(Place& from, Place& to) { layerscope_switch_stack(&from, &to); }
void begin_on_stack(Place& place, void* stack, void (*run)()) {
    // Six registers, then where to go; a function begins eight bytes off a multiple of sixteen.
    void** top = reinterpret_cast<void**>(static_cast<char*>(stack) + STACK) - 2;
    top[0] = reinterpret_cast<void*>(run);
    place = top - 6;
}
#else
using Place = ucontext_t;
void switch_stack(Place& from, Place& to) { swapcontext(&from, &to); }
void begin_on_stack(Place& place, void* stack, void (*run)()) {
    getcontext(&place);
    place.uc_stack.ss_sp = stack;
    place.uc_stack.ss_size = STACK;
    place.uc_link = nullptr;
    makecontext(&place, run, 0);
}
#endif

struct Registered {
    size_t parameter_bytes;
    unsigned threads;
    void (*run)(const void*);
};
std::map<std::string, Registered>& kernels() {
    static std::map<std::string, Registered> registered;
    return registered;
}

struct Copy {
    void* to;
    const void* from;
    // Of 16, the rest being zeros.
    unsigned bytes;
};

enum class State { Ready, AtBlockBarrier, AtWarpBarrier, Done };

struct Fiber {
    void* stack = nullptr;
    // Where it stands.
    Place at;
    State state = State::Done;
    std::vector<Copy> copies;
    // How many of `copies` each committed group ends at.
    std::vector<size_t> groups;
};

struct Warp {
    unsigned waiting = 0, alive = 0;
    // Two sets of slots by turns: whoever reads the one has not yet come to the exchange after the next.
    unsigned turn[32] = {};
    alignas(64) unsigned char slots[2][32][SLOT];
};

struct Machine {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<unsigned char> shared;
    size_t shared_bytes = 0;
    unsigned threads = 0, waiting = 0, alive = 0;
    Place scheduler;
    const Registered* kernel = nullptr;
    const void* parameters = nullptr;
    uint64_t random = 1;

    ~Machine() {
        for (Fiber& fiber : fibers)
            if (fiber.stack) munmap(fiber.stack, STACK);
    }
    uint64_t draw() {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        return random;
    }
    unsigned char* shared_start() {
        unsigned char* start = shared.data() + BORDER;
        return start + (128 - reinterpret_cast<uintptr_t>(start) % 128) % 128;
    }
};
// A pointer, since what a thread owns outright is looked up anew at each access.
thread_local std::unique_ptr<Machine> owned;
thread_local Machine* machine_of_thread = nullptr;
#define machine (*machine_of_thread)

Fiber& mine() { return machine.fibers[current.index]; }
Warp& my_warp() { return machine.warps[current.index / 32]; }

void release_block() {
    if (machine.waiting == 0 || machine.waiting < machine.alive) return;
    for (unsigned i = 0; i < machine.threads; i++)
        if (machine.fibers[i].state == State::AtBlockBarrier) machine.fibers[i].state = State::Ready;
    machine.waiting = 0;
}
void release_warp(unsigned index) {
    Warp& warp = machine.warps[index];
    if (warp.waiting == 0 || warp.waiting < warp.alive) return;
    for (unsigned i = index * 32; i < index * 32 + 32; i++)
        if (machine.fibers[i].state == State::AtWarpBarrier) machine.fibers[i].state = State::Ready;
    warp.waiting = 0;
}
void pause() { switch_stack(mine().at, machine.scheduler); }
// Block after block: a fiber is made once.
void run_threads() {
    for (;;) {
        machine.kernel->run(machine.parameters);
        mine().state = State::Done;
        machine.alive--;
        my_warp().alive--;
        release_block();
        release_warp(current.index / 32);
        pause();
    }
}

// Whether every thread came to its end.
bool run_block(const unsigned block[3], const unsigned grid[3]) {
    Machine& m = machine;
    memset(m.shared.data(), BORDER_BYTE, m.shared.size());
    memset(m.shared_start(), POISON, m.shared_bytes);
    m.waiting = 0, m.alive = m.threads;
    for (Warp& warp : m.warps) warp.waiting = 0, warp.alive = 32, memset(warp.turn, 0, sizeof warp.turn);
    for (unsigned i = 0; i < m.threads; i++) {
        Fiber& fiber = m.fibers[i];
        if (!fiber.stack) {
            fiber.stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            begin_on_stack(fiber.at, fiber.stack, run_threads);
        }
        fiber.state = State::Ready;
        fiber.copies.clear(), fiber.groups.clear();
    }
    std::vector<unsigned> ready(m.threads);
    while (m.alive > 0) {
        size_t count = 0;
        for (unsigned i = 0; i < m.threads; i++)
            if (m.fibers[i].state == State::Ready) ready[count++] = i;
        if (count == 0) return false;
        // All that are ready, in a random order.
        for (; count > 0; count--) {
            std::swap(ready[m.draw() % count], ready[count - 1]);
            const unsigned index = ready[count - 1];
            Fiber& fiber = m.fibers[index];
            current = Thread{index, m.threads, {block[0], block[1], block[2]}, {grid[0], grid[1], grid[2]}};
            switch_stack(m.scheduler, fiber.at);
        }
    }
    return true;
}

}  // namespace

Kernel::Kernel(const char* name, size_t parameter_bytes, unsigned threads, void (*run)(const void*)) {
    kernels()[name] = Registered{parameter_bytes, threads, run};
}
void* dynamic_shared() { return machine.shared_start(); }
void block_barrier() {
    mine().state = State::AtBlockBarrier;
    machine.waiting++;
    release_block();
    if (mine().state != State::Ready) pause();
}
void warp_barrier() {
    mine().state = State::AtWarpBarrier;
    my_warp().waiting++;
    release_warp(current.index / 32);
    if (mine().state != State::Ready) pause();
}
void exchange(const void* bytes, unsigned count) {
    const unsigned lane = current.index % 32;
    Warp& warp = my_warp();
    warp.turn[lane] ^= 1;
    memcpy(warp.slots[warp.turn[lane]][lane], bytes, count);
    warp_barrier();
}
const void* lane(unsigned index) {
    Warp& warp = my_warp();
    return warp.slots[warp.turn[current.index % 32]][index];
}
void copy_later(void* to, const void* from, unsigned bytes) { mine().copies.push_back(Copy{to, from, bytes}); }
void commit_copies() { mine().groups.push_back(mine().copies.size()); }
void wait_for_copies(unsigned groups) {
    Fiber& fiber = mine();
    if (fiber.groups.size() <= groups) return;
    const size_t arrived = fiber.groups.size() - groups, end = fiber.groups[arrived - 1];
    for (size_t i = 0; i < end; i++) {
        const Copy& copy = fiber.copies[i];
        Vector16 bytes = {};
        if (copy.bytes == 16) bytes = *static_cast<const Vector16*>(copy.from);
        else memcpy(&bytes, copy.from, copy.bytes);
        *static_cast<Vector16*>(copy.to) = bytes;
    }
    fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<ptrdiff_t>(end));
    fiber.groups.erase(fiber.groups.begin(), fiber.groups.begin() + static_cast<ptrdiff_t>(arrived));
    for (size_t& group : fiber.groups) group -= end;
}

}  // namespace emulator

// 0, or a sentence about what is wrong with the launch or the kernel in `message`.
extern "C" int layerscope_emulate(const char* name, const uint32_t grid[3], uint32_t threads, size_t shared_bytes,
                                  const void* parameters, size_t parameter_bytes, uint64_t seed, char* message,
                                  size_t message_bytes) {
    using namespace emulator;
    const auto refuse = [&](const char* what) {
        snprintf(message, message_bytes, "kernel %s: %s", name, what);
        return 1;
    };
    const auto found = kernels().find(name);
    if (found == kernels().end()) return refuse("there is none of that name");
    const Registered& kernel = found->second;
    if (kernel.parameter_bytes != parameter_bytes) return refuse("its parameters are of another size");
    if (threads == 0 || threads % 32 != 0 || threads > kernel.threads) return refuse("threads of a block");
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) return refuse("blocks of the grid");
    if (shared_bytes > (227u << 10)) return refuse("more shared memory than a block can have");

    if (!owned) owned = std::make_unique<Machine>();
    machine_of_thread = owned.get();
    Machine& m = machine;
    m.kernel = &kernel, m.parameters = parameters, m.threads = threads;
    m.random = seed * 2654435769u + 88172645463325252u;
    // All at once: a fiber that has begun must stay where it is.
    if (m.fibers.empty()) m.fibers = std::vector<Fiber>(1024);
    m.warps.resize(threads / 32);
    m.shared.assign(shared_bytes + 2 * BORDER + 128, 0);
    m.shared_bytes = shared_bytes;
    for (uint32_t z = 0; z < grid[2]; z++)
        for (uint32_t y = 0; y < grid[1]; y++)
            for (uint32_t x = 0; x < grid[0]; x++) {
                const unsigned block[3] = {x, y, z}, blocks[3] = {grid[0], grid[1], grid[2]};
                if (!run_block(block, blocks)) {
                    // Where they stand they can't be gone on with.
                    machine_of_thread = nullptr;
                    owned.reset();
                    return refuse("threads wait for each other at different barriers");
                }
                const unsigned char* start = m.shared_start();
                for (size_t i = 0; i < BORDER; i++)
                    if (start[-1 - static_cast<ptrdiff_t>(i)] != BORDER_BYTE || start[shared_bytes + i % 128] != BORDER_BYTE)
                        return refuse("writes beyond its shared memory");
            }
    return 0;
}

// Bytes of the parameters of a kernel; 0 where there is none of that name.
extern "C" size_t layerscope_emulated_parameter_bytes(const char* name) {
    const auto found = emulator::kernels().find(name);
    return found == emulator::kernels().end() ? 0 : found->second.parameter_bytes;
}
