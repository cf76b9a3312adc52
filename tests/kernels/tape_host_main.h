// The scheduler behind the kernel: every fiber in turn, blocks left behind and copies landing at
// random, by the seed.
Fiber* current;
std::vector<BlockState> blocks;
std::deque<Copy> copies;
int grid_size, block_size = THREADS;
static ucontext_t scheduler;
static const Params* params;

void give_way() { swapcontext(&current->context, &scheduler); }

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
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, live, 0);
    }
    for (size_t alive = fibers.size(); alive > 0;) {
        if (rand() % 8 == 0)
            for (size_t n = rand() % (copies.size() + 1); n > 0; n--) land();
        const int behind = rand() % 4 == 0 ? rand() % grid : -1;
        for (Fiber& fiber : fibers) {
            if (fiber.done || fiber.block == behind) continue;
            current = &fiber;
            swapcontext(&scheduler, &fiber.context);
            alive -= fiber.done;
        }
    }
    for (Fiber& fiber : fibers) free(fiber.stack);
    for (BlockState& block : blocks) munmap(block.shared, SHARED);
}
