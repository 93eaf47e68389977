// Blocks of rows, shared out to threads that live as long as the call: nothing is left behind that a fork could miss.
#include "threads.h"

#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>
#if !defined(_WIN32)
#include <signal.h>
#endif

namespace evicp {

bool Sets::make_room(int64_t more, bool is_scored) {
    int64_t wanted = used + more > 2 * size ? used + more : 2 * size;
    if (wanted < 256) wanted = 256;
    void *grown = realloc(labels, size_t(wanted) * sizeof(int32_t));
    if (grown == nullptr) return false;
    labels = static_cast<int32_t *>(grown);
    if (is_scored) {
        grown = realloc(scores, size_t(wanted) * sizeof(double));
        if (grown == nullptr) return false;
        scores = static_cast<double *>(grown);
    }
    size = wanted;
    return true;
}

void Blocks::release() {
    for (int64_t i = 0; i < count; i++) free(sets[i].labels), free(sets[i].scores);
    free(sets);
    sets = nullptr, count = 0;
}

namespace {

constexpr int64_t kAlone = 1 << 18;  // fewer logits than this are not worth waking a second thread for, or a look at signals
constexpr int64_t kLeast = 1 << 16;
constexpr auto kPatience = std::chrono::milliseconds(20);  // between two looks at signals

// What the threads of a call share.
struct Work {
    const Job &job;
    const Function function;
    const Blocks &blocks;
    const int64_t step;  // rows in a block
    std::atomic<int64_t> next{0};
    std::atomic<bool> ended{false};
    std::mutex lock;  // of what follows
    int64_t bad = kUsable;

    Work(const Job &job, Function function, const Blocks &blocks, int64_t step) : job(job), function(function), blocks(blocks), step(step) {}

    void end(int64_t why) {
        std::lock_guard<std::mutex> hold(lock);
        if (why >= 0 ? bad == kUsable || (bad >= 0 && why < bad) : true) bad = why;
        ended = true;
    }

    // Blocks are taken in their order, so that none before one with an unusable row is left out.
    bool take_one() {
        int64_t block = ended ? blocks.count : next++;
        if (block >= blocks.count) return false;
        int64_t first = block * step, stop = first + step < job.n ? first + step : job.n;
        int64_t why = function(job, first, stop, blocks.sets[block]);
        if (why != kUsable) end(why);
        return why == kUsable;
    }
};

// Helpers, which signals do not reach: those are the calling thread's. They have no destructor: the calling thread may end with
// its interpreter while they work.
class Helpers {
    static constexpr int kMost = 1024;
    std::thread *threads = nullptr;
    int count = 0;

  public:
    void start(int wanted, Work &work) {
        if (wanted < 1) return;
        threads = new (std::nothrow) std::thread[size_t(wanted < kMost ? wanted : kMost)];
        if (threads == nullptr) return;
#if !defined(_WIN32)
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
        try {
            for (; count < wanted && count < kMost; count++)
                threads[count] = std::thread([&work] {
                    while (work.take_one()) {}
                });
        } catch (const std::system_error &) {  // no more threads: those that there are do the work
        }
#if !defined(_WIN32)
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
    }
    void join() {
        for (int i = 0; i < count; i++) threads[i].join();
        delete[] threads;
        threads = nullptr, count = 0;
    }
};

}  // namespace

int64_t share_out(const Job &job, Function function, Blocks &blocks, int threads, bool (*is_interrupted)()) {
    if (job.n == 0) return kUsable;
    int64_t logits = job.n * job.n_classes, size = logits / (8 * int64_t(threads));
    size = logits <= kAlone ? logits : size < kLeast ? kLeast : size > kAlone ? kAlone : size;
    int64_t step = size / job.n_classes > 1 ? size / job.n_classes : 1, count = (job.n + step - 1) / step;
    blocks.sets = static_cast<Sets *>(calloc(size_t(count), sizeof(Sets)));
    if (blocks.sets == nullptr) return kNoMemory;
    blocks.count = count;
    if (count == 1) return function(job, 0, job.n, blocks.sets[0]);
    Work work(job, function, blocks, step);
    Helpers helpers;
    helpers.start(int(threads < count ? threads : count) - 1, work);
    auto before = std::chrono::steady_clock::now();
    while (work.take_one()) {
        auto now = std::chrono::steady_clock::now();
        if (now - before < kPatience) continue;
        before = now;
        if (is_interrupted()) work.end(kInterrupted);
    }
    helpers.join();
    for (int64_t i = 1, used = 0; job.ends && work.bad == kUsable && i < count; i++) {  // ends in a block become ends in all
        used += blocks.sets[i - 1].used;
        for (int64_t row = i * step; row < job.n && row < (i + 1) * step; row++) job.ends[row] += used;
    }
    return work.bad;
}

}  // namespace evicp
