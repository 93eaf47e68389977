// Sharing out the rows of a job to threads.
#pragma once

#include "job.h"

namespace evicp {

constexpr int64_t kInterrupted = -3;

// The sets of all blocks of rows, in their order.
struct Blocks {
    Sets *sets;
    int64_t count;
    void release();
};

// Do all rows of a job in blocks, in as many threads; what it gives does not depend on how many. `is_interrupted` is asked
// now and then, in the calling thread. Gives the first row that cannot be used, or `kUsable`, or what else ended it.
int64_t share_out(const Job &job, Function function, Blocks &blocks, int threads, bool (*is_interrupted)());

}  // namespace evicp
