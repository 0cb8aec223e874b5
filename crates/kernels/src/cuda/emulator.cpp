// Runs kernels on the CPU, so that their every index is tested where there is no GPU.
//
// Threads of a block are fibers. One runs until it comes to a barrier or a collective of its warp; which goes on is drawn at
// random, so that a missing barrier shows as a wrong result. Shared memory begins as NaN; asynchronous copies arrive no
// sooner than they are waited for. Memory of either kind ends at a page that nothing may touch; what is left in between must
// stay as it was, and is NaN for whoever reads it. Addresses that are not aligned as their type asks for are traps.
#include "kernels.cu"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
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

constexpr size_t STACK = 256 << 10, SLOT = 64;
// As on a GPU, where addresses of buffers are multiples of 256; of shared memory kernels ask for this.
constexpr size_t BUFFER_ALIGNMENT = 256, SHARED_ALIGNMENT = 128;
// What memory holds before it is written, and what lies around it, by turns: NaN in every type.
constexpr unsigned char POISON = 0xff, BORDER_BYTES[2] = {0xa5, 0xff};

size_t page_bytes() {
    static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}
size_t rounded_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

// Memory between two pages that nothing may touch, as near to the second as its alignment lets it be.
struct Mapping {
    unsigned char *start = nullptr, *end = nullptr;
    // What was asked for.
    unsigned char* data = nullptr;
    size_t bytes = 0;

    static Mapping of(size_t bytes, size_t alignment) {
        const size_t page = page_bytes(), whole = rounded_up(bytes > 0 ? bytes : 1, page);
        void* pages = mmap(nullptr, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (pages == MAP_FAILED) return {};
        Mapping mapping;
        mapping.start = static_cast<unsigned char*>(pages) + page, mapping.end = mapping.start + whole;
        if (mprotect(mapping.start, whole, PROT_READ | PROT_WRITE) != 0) {
            munmap(pages, whole + 2 * page);
            return {};
        }
        mapping.data = mapping.end - rounded_up(bytes, alignment), mapping.bytes = bytes;
        for (unsigned char* at = mapping.start; at < mapping.end; at++) {
            if (at == mapping.data) at += bytes;
            if (at < mapping.end) *at = BORDER_BYTES[(at - mapping.start) % 2];
        }
        memset(mapping.data, POISON, bytes);
        return mapping;
    }
    bool intact() const {
        for (const unsigned char* at = start; at < end; at++) {
            if (at == data) at += bytes;
            if (at < end && *at != BORDER_BYTES[(at - start) % 2]) return false;
        }
        return true;
    }
    void release() {
        if (start) munmap(start - page_bytes(), static_cast<size_t>(end - start) + 2 * page_bytes());
        *this = Mapping{};
    }
};

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
    Mapping shared;
    unsigned threads = 0, waiting = 0, alive = 0;
    // What a thread did that a GPU would not put up with, if anything.
    const char* wrong = nullptr;
    const char* name = nullptr;
    Place scheduler;
    const Registered* kernel = nullptr;
    const void* parameters = nullptr;
    uint64_t random = 1;

    ~Machine() {
        for (Fiber& fiber : fibers)
            if (fiber.stack) munmap(fiber.stack, STACK);
        shared.release();
    }
    uint64_t draw() {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        return random;
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
    if (machine.alive < machine.threads) machine.wrong = "threads of a block wait for others that have ended";
    for (unsigned i = 0; i < machine.threads; i++)
        if (machine.fibers[i].state == State::AtBlockBarrier) machine.fibers[i].state = State::Ready;
    machine.waiting = 0;
}
void release_warp(unsigned index) {
    Warp& warp = machine.warps[index];
    if (warp.waiting == 0 || warp.waiting < warp.alive) return;
    if (warp.alive < 32) machine.wrong = "lanes of a warp wait for others that have ended";
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
    memset(m.shared.data, POISON, m.shared.bytes);
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
void* dynamic_shared() { return machine.shared.data; }
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
void copy_later(void* to, const void* from, unsigned bytes) {
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes > 16)
        machine.wrong = "an asynchronous copy is not of 16 aligned bytes at most";
    mine().copies.push_back(Copy{to, from, bytes});
}
void check_row_of_matrix(const void* row) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) machine.wrong = "a row of a matrix is not at a multiple of 16 bytes";
    const unsigned char* first = static_cast<const unsigned char*>(row);
    if (first < machine.shared.data || first + 16 > machine.shared.data + machine.shared.bytes)
        machine.wrong = "a row of a matrix is not in shared memory";
}
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

namespace {

// Says which kernel does what is not allowed, before the program ends as it would without this.
struct sigaction before[NSIG];
void tell(int number, siginfo_t* information, void*) {
    using namespace emulator;
    if (machine_of_thread && machine.name) {
        const bool trap = number == SIGILL || number == SIGTRAP;
        const char* what = "reaches beyond its memory, to";
        if (trap) what = "uses memory that is not aligned, or does what has no meaning, at";
        char sentence[256];
        const int length = snprintf(sentence, sizeof sentence, "kernel %s: thread %u of block %u, %u, %u %s %p\n", machine.name,
                                    current.index, current.block[0], current.block[1], current.block[2], what,
                                    information->si_addr);
        if (length > 0) (void)!write(STDERR_FILENO, sentence, static_cast<size_t>(length));
    }
    // What it was doing it does once more, and ends.
    sigaction(number, &before[number], nullptr);
}
bool listen() {
    struct sigaction action = {};
    action.sa_sigaction = tell;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGTRAP}) sigaction(number, &action, &before[number]);
    return true;
}

}  // namespace

// 0, or a sentence about what is wrong with the launch or the kernel in `message`. `most_shared_bytes` are all that a block
// can have.
extern "C" int layerscope_emulate(const char* name, const uint32_t grid[3], uint32_t threads, size_t shared_bytes,
                                  size_t most_shared_bytes, const void* parameters, size_t parameter_bytes, uint64_t seed,
                                  char* message, size_t message_bytes) {
    using namespace emulator;
    const auto refuse = [&](const char* what) {
        snprintf(message, message_bytes, "kernel %s: %s", name, what);
        if (machine_of_thread) machine.name = nullptr;
        return 1;
    };
    const auto found = kernels().find(name);
    if (found == kernels().end()) return refuse("there is none of that name");
    const Registered& kernel = found->second;
    if (kernel.parameter_bytes != parameter_bytes) return refuse("its parameters are of another size");
    if (threads == 0 || threads % 32 != 0 || threads > kernel.threads) return refuse("threads of a block");
    if (grid[0] == 0 || grid[0] > 0x7fffffffu || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535)
        return refuse("blocks of the grid");
    if (shared_bytes > most_shared_bytes) return refuse("more shared memory than a block can have");

    static const bool listening = listen();
    (void)listening;
    if (!owned) owned = std::make_unique<Machine>();
    machine_of_thread = owned.get();
    Machine& m = machine;
    m.kernel = &kernel, m.parameters = parameters, m.threads = threads, m.name = name, m.wrong = nullptr;
    m.random = seed * 2654435769u + 88172645463325252u;
    // All at once: a fiber that has begun must stay where it is.
    if (m.fibers.empty()) m.fibers = std::vector<Fiber>(1024);
    m.warps.resize(threads / 32);
    if (!m.shared.start || m.shared.bytes != shared_bytes) {
        m.shared.release();
        m.shared = Mapping::of(shared_bytes, SHARED_ALIGNMENT);
        if (!m.shared.start) return refuse("there is no memory for it");
    }
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
                if (m.wrong) return refuse(m.wrong);
            }
    if (!m.shared.intact()) {
        m.shared.release();
        return refuse("writes beyond its shared memory");
    }
    m.name = nullptr;
    return 0;
}

// Memory of a buffer, or null where there is none left.
extern "C" void* layerscope_emulated_allocate(size_t bytes) {
    using namespace emulator;
    return Mapping::of(bytes, BUFFER_ALIGNMENT).data;
}
// Gives it back; whether nothing was written around it.
extern "C" int layerscope_emulated_free(void* data, size_t bytes) {
    using namespace emulator;
    Mapping mapping;
    mapping.data = static_cast<unsigned char*>(data), mapping.bytes = bytes;
    mapping.end = mapping.data + rounded_up(bytes, BUFFER_ALIGNMENT);
    mapping.start = mapping.end - rounded_up(bytes, page_bytes());
    const bool intact = mapping.intact();
    mapping.release();
    return intact;
}

// Bytes of the parameters of a kernel; 0 where there is none of that name.
extern "C" size_t layerscope_emulated_parameter_bytes(const char* name) {
    const auto found = emulator::kernels().find(name);
    return found == emulator::kernels().end() ? 0 : found->second.parameter_bytes;
}
