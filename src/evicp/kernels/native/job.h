// What the binding asks of a level, and what it gets.
#pragma once

#include <stdint.h>

namespace evicp {

enum Kind : int32_t { kEcp, kLac, kMass, kSaps, kTopK, kMargin, kRank };  // APS and Base are RAPS without a penalty
enum Evidence : int32_t { kRelu, kSoftplus, kExp };
enum Type : int32_t { kHalf, kBfloat, kSingle, kDouble };

// A score's parameters: the bytes that `_native.py` packs, in this order.
struct Score {
    int32_t kind, evidence, randomized, randomize_penalty;
    double temperature, stabilizer, log_stabilizer, lam, k_reg;
    uint64_t seed;
};

constexpr int64_t kUsable = -1, kNoMemory = -2;  // else the first row that cannot be used

// The sets of a block of rows: where each ends in it is noted by its row.
struct Sets {
    int32_t *labels;
    double *scores;  // null unless the job is scored
    int64_t used, size;
    bool make_room(int64_t more, bool is_scored);  // false where there is no memory
};

struct Job {
    Score score;
    const char *logits;
    int64_t stride;  // bytes from one row to the next
    int64_t n, n_classes;
    int32_t type;
    bool in_place;  // whether rows can be read where they lie: floats, aligned, of at least 16 labels

    const int64_t *labels;
    double inverse_temperature;
    const double *thresholds;  // one for all, for each row, or for each label
    int64_t n_thresholds;
    bool by_label;
    const double *rates;              // base rates pi, or null
    const double *utility;            // of each label of each row, or null
    int64_t utility_stride;  // numbers from one row to the next
    bool is_uneven;          // whether scores need not fall as logits rise

    void *result;      // where numbers of rows go
    double *values() const { return static_cast<double *>(result); }
    bool is_scored;    // whether sets come with scores
    int64_t *ends;     // of each row's set
};

// One level's functions: each does rows `first` to `stop` and gives the first row it cannot use, or `kUsable`.
using Function = int64_t (*)(const Job &, int64_t first, int64_t stop, Sets &);
struct Level {
    const char *name;
    Function label_scores, dense_scores, sets, uncertainties, top_labels, likelihoods;
};

}  // namespace evicp
