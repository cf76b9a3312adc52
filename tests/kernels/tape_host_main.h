// The scheduler behind the kernel: every fiber in turn, blocks left behind and copies landing at
// random, by the seed.
Fiber* current;
std::vector<BlockState> blocks;
std::deque<Copy> copies;
int grid_size, block_size = THREADS;
static void* scheduler;
static const Params* params;

// A clock that goes on by a pass's own time whenever another pass is asked for.
extern "C" uint64_t pass_ns[9];
uint64_t pass_ns[9];
static uint64_t passed_ns;
static int timed_pass;

uint64_t time_of_pass(int pass, int width) {
    if (pass != timed_pass) passed_ns += pass_ns[width];
    timed_pass = pass;
    return passed_ns;
}

// Goes on at the stack `to` and leaves its own in `from`: swapcontext without its system calls.
extern "C" __attribute__((visibility("hidden"))) void go_on_at(void** from, void* to);
asm(R"(
    .text
    .globl go_on_at
    .hidden go_on_at
go_on_at:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

void give_way() { go_on_at(&current->at, scheduler); }

static void live() {
    tape_decode(*params);
    current->done = true;
    give_way();
}

static void land() {
    const Copy copy = copies.front();
    copies.pop_front();
    if (copy.to && copy.from) memcpy(copy.to, copy.from, copy.bytes);
    if (copy.to && !copy.from) memset(copy.to, 0, copy.bytes);
    if (copy.arrives) arrive_at(copy.arrives);
}

extern "C" void run(const Params* given, int grid, unsigned seed) {
    constexpr size_t STACK = 65536, SHARED = 16384 + 232448;
    params = given;
    grid_size = grid;
    srand(seed);
    passed_ns = 0, timed_pass = -1;
    copies.clear();
    blocks.assign(grid, BlockState());
    for (BlockState& block : blocks) {
        block.shared = (char*)mmap(nullptr, SHARED, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        memset(block.shared, 0xff, SHARED);
        for (WarpState& warp : block.warps) memset(warp.turn, 0, sizeof warp.turn);
    }
    std::vector<Fiber> fibers(grid * THREADS);
    for (int i = 0; i < grid * THREADS; i++) {
        Fiber& fiber = fibers[i];
        fiber.thread = i % THREADS;
        fiber.block = i / THREADS;
        fiber.done = false;
        fiber.stack = malloc(STACK);
        // As `go_on_at` leaves a stack: six registers, then where to return to.
        void** top = (void**)((char*)fiber.stack + STACK);
        top[-2] = (void*)live;
        fiber.at = top - 8;
    }
    for (size_t alive = fibers.size(); alive > 0;) {
        if (rand() % 8 == 0)
            for (size_t n = rand() % (copies.size() + 1); n > 0; n--) land();
        const int behind = rand() % 4 == 0 ? rand() % grid : -1;
        for (Fiber& fiber : fibers) {
            if (fiber.done || fiber.block == behind) continue;
            current = &fiber;
            go_on_at(&scheduler, fiber.at);
            alive -= fiber.done;
        }
    }
    for (Fiber& fiber : fibers) free(fiber.stack);
    for (BlockState& block : blocks) munmap(block.shared, SHARED);
}
