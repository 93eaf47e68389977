// Sharing out the rows of a job to threads.
#pragma once

#include "job.h"

namespace evicp {

constexpr int64_t kInterrupted = -3;
using Function = int64_t (*)(const Job &, int64_t first, int64_t stop, Sets &);

// Do all rows of a job in blocks, in as many threads; what it gives does not depend on how many. `is_interrupted` is asked
// now and then, in the calling thread. Gives the first row that cannot be used, or `kUsable`, or what else ended it.
int64_t share_out(const Job &job, Function function, Sets &result, bool has_sets, int threads, bool (*is_interrupted)());

}  // namespace evicp
