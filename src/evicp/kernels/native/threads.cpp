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

bool Sets::make_room(int64_t more) {
    int64_t wanted = used + more > 2 * size ? used + more : 2 * size;
    if (wanted < 256) wanted = 256;
    void *grown = realloc(labels, size_t(wanted) * sizeof(int32_t));
    if (grown == nullptr) return false;
    labels = static_cast<int32_t *>(grown);
    if (scored) {
        grown = realloc(scores, size_t(wanted) * sizeof(double));
        if (grown == nullptr) return false;
        scores = static_cast<double *>(grown);
    }
    size = wanted;
    return true;
}

void Sets::release() {
    free(labels);
    free(scores);
    labels = nullptr, scores = nullptr, used = size = 0;
}

namespace {

constexpr int64_t kAlone = 1 << 18;  // fewer logits than this are not worth waking a second thread for, or a look at signals
constexpr int64_t kLeast = 1 << 16;
constexpr auto kPatience = std::chrono::milliseconds(20);  // between two looks at signals

struct Block {
    Sets sets;
    bool is_done;
};

// What the threads of a call share.
struct Work {
    Work(const Job &job, Function function, Sets &result, int64_t step, int64_t n_blocks)
        : job(job), function(function), result(result), step(step), n_blocks(n_blocks) {}

    const Job &job;
    Function function;
    Sets &result;
    int64_t step, n_blocks;
    Block *blocks = nullptr;  // of sets that wait for those before them; null where there are no sets
    std::atomic<int64_t> next{0};
    std::atomic<bool> ended{false};
    std::mutex lock;  // of what follows, and `result`
    int64_t bad = kUsable, joined = 0;

    void end(int64_t why) {
        std::lock_guard<std::mutex> hold(lock);
        if (why >= 0 ? bad == kUsable || (bad >= 0 && why < bad) : true) bad = why;
        ended = true;
    }

    // Blocks are taken in their order, so that none before one with an unusable row is left out.
    bool take_one() {
        int64_t block = ended ? n_blocks : next.fetch_add(1);
        if (block >= n_blocks) return false;
        int64_t first = block * step, stop = first + step < job.n ? first + step : job.n;
        Sets own{nullptr, nullptr, 0, 0, result.scored};
        int64_t why = function(job, first, stop, own);
        if (why != kUsable) own.release();
        if (why == kUsable && blocks && !join(block, own)) why = kNoMemory;
        if (why != kUsable) end(why);
        return why == kUsable;
    }

    // Keep the sets of a block, and append those of all blocks that are done to the result, in their order: it is in memory
    // once. False where there is no memory.
    bool join(int64_t block, const Sets &sets) {
        std::lock_guard<std::mutex> hold(lock);
        blocks[block] = {sets, true};
        for (; joined < n_blocks && blocks[joined].is_done; joined++) {
            Sets &own = blocks[joined].sets;
            int64_t first = joined * step, stop = first + step < job.n ? first + step : job.n;
            int64_t likely = (result.used + own.used) / stop * (job.n - stop) * 9 / 8 + own.used;
            if (result.used + own.used > result.size && !result.make_room(likely)) return false;
            if (own.used) {
                memcpy(result.labels + result.used, own.labels, size_t(own.used) * sizeof(int32_t));
                if (result.scored) memcpy(result.scores + result.used, own.scores, size_t(own.used) * sizeof(double));
            }
            for (int64_t i = first; i < stop; i++) job.ends[i] += result.used;
            result.used += own.used;
            own.release();
        }
        return true;
    }
};

// Helpers, which signals do not reach: those are the calling thread's.
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

int64_t share_out(const Job &job, Function function, Sets &result, bool has_sets, int threads, bool (*is_interrupted)()) {
    if (job.n == 0) return kUsable;
    int64_t logits = job.n * job.n_classes;
    if (logits <= kAlone || job.n == 1) return function(job, 0, job.n, result);
    int64_t size = logits / (8 * int64_t(threads));
    size = size < kLeast ? kLeast : size > kAlone ? kAlone : size;
    int64_t step = size / job.n_classes > 1 ? size / job.n_classes : 1, n_blocks = (job.n + step - 1) / step;
    Work work(job, function, result, step, n_blocks);
    if (has_sets) {
        work.blocks = static_cast<Block *>(calloc(size_t(n_blocks), sizeof(Block)));
        if (work.blocks == nullptr) return kNoMemory;
    }
    Helpers helpers;
    helpers.start(int(threads - 1 < n_blocks - 1 ? threads - 1 : n_blocks - 1), work);
    auto before = std::chrono::steady_clock::now();
    while (work.take_one()) {
        auto now = std::chrono::steady_clock::now();
        if (now - before < kPatience) continue;
        before = now;
        if (is_interrupted()) work.end(kInterrupted);
    }
    helpers.join();
    for (int64_t i = 0; work.blocks && i < n_blocks; i++) work.blocks[i].sets.release();
    free(work.blocks);
    return work.bad;
}

}  // namespace evicp
