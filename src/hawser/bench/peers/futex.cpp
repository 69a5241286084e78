// Two processes hand one word to and fro with nothing but futex(2): the floor of any blocking round trip.
// Usage: futex CORE CORE ROUNDS BLOCKS; prints the nanoseconds of one round trip, a line for each block.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

struct Word {
    alignas(64) std::atomic<std::uint32_t> value{0};
};

void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) std::perror("sched_setaffinity");
}

void hand_over(Word& word, std::uint32_t round) {
    word.value.store(round, std::memory_order_release);
    syscall(SYS_futex, &word.value, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void wait_for(Word& word, std::uint32_t round) {
    for (;;) {
        const std::uint32_t seen = word.value.load(std::memory_order_acquire);
        if (seen == round) return;
        syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, nullptr, nullptr, 0);
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 5) return 2;
    const int near_core = std::atoi(arguments[1]), far_core = std::atoi(arguments[2]);
    const auto rounds = static_cast<std::uint32_t>(std::atoi(arguments[3]));
    const auto blocks = static_cast<std::uint32_t>(std::atoi(arguments[4]));
    void* memory = mmap(nullptr, 2 * sizeof(Word), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    Word* words = new (memory) Word[2];
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(far_core);
        for (std::uint32_t round = 1; round <= rounds * blocks; ++round) {
            wait_for(words[0], round);
            hand_over(words[1], round);
        }
        _exit(0);
    }
    pin(near_core);
    std::uint32_t round = 0;
    for (std::uint32_t block = 0; block < blocks; ++block) {
        const auto started = std::chrono::steady_clock::now();
        for (std::uint32_t i = 0; i < rounds; ++i) {
            hand_over(words[0], ++round);
            wait_for(words[1], round);
        }
        const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - started;
        std::printf("%.1f\n", spent.count() / rounds);
    }
    waitpid(child, nullptr, 0);
    return 0;
}
