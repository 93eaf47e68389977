// A row's set where labels have limits of their own.
//
// All labels are tested, fast and roughly, for whether they may be within their limits at rank 0. Those that pass are
// looked at one by one, their ranks counted in the row; if they are many, all labels are walked through in order instead.
#pragma once
#include "sets.h"

namespace evicp {
namespace EVICP_LEVEL {

using F = Lanes<float, kLanes>;

// More labels than this are walked through in order; each takes a pass over the row, with exponentials where weights are needed.
constexpr int64_t kSingles = 256, kSingleMasses = 8;
constexpr double kSmallestStabilizer = 1e-20;  // smaller ones would take the test out of float32's range
constexpr double kTangentAt4 = -0.6362943611198906;  // 3/4 - ln 4

// What limits ask of labels: `demands` holds -e^-t, or t, of each limit t, and `tight` how far all labels are walked through.
struct Limits {
    float *demands;
    double tight;
    bool has_test;  // whether there is a test for the score; else only labels without a limit pass
};

inline void find_demands(const Parameters &p, const double *limits, int64_t n, Limits &result) {
    result.has_test = true, result.tight = -double(kInfinity);
    const bool by_logarithms = p.kind == kEcp && p.stabilizer < kSmallestStabilizer;
    for (int64_t k = 0; k < n; k += kSide) {
        alignas(64) double t[kSide];
        for (int i = 0; i < kSide; i++) t[i] = k + i < n ? limits[k + i] : -double(kInfinity);
        D limit = D::load(t), demand;
        if (p.kind == kMargin) {
            demand = larger(limit, D(0.0)) + kRoughly;  // the top label, whose score is negative, always passes
        } else if (by_logarithms) {
            demand = larger(limit * (1.0 - kRoughly), limit * (1.0 + kRoughly)) + kRoughly;
        } else if (p.kind == kLac || p.kind == kEcp) {
            demand = exp(smaller(D(0.0) - limit, D(69.0))) * (1.0 - kRoughly);
            demand = select(demand < D(1e-37), D(0.0), demand * -1.0);
            demand = select(limit == D(-kInfinity), D(-kInfinity), demand);
        } else {
            result.has_test = false;
            demand = select(limit == D(kInfinity), D(0.0), D(-kInfinity));
        }
        demand.store(t);
        for (int i = 0; i < kSide && k + i < n; i++) {
            result.demands[k + i] = float(t[i]);
            if (!result.has_test && limits[k + i] < double(kInfinity)) result.tight = larger(limits[k + i], result.tight);
        }
    }
    for (int64_t k = n; k < n + kLanes; k++) result.demands[k] = -kInfinity;
}

// What the test for possible labels needs to know of their row.
struct Test {
    double base;
    float rate, scale, constant, surprisal, least;
};
template <class T> Test test_of(const Batch<T> &b, int64_t j) {
    const Parameters &p = b.p;
    const Facts<kBatch> &f = b.facts;
    const double none = -double(kInfinity);
    if (p.kind == kLac || p.kind == kMargin) {
        double constant = p.kind == kMargin ? -f.largest[j] : 0.0, largest = p.kind == kLac ? exp(D(-f.log_total[j])).first() : f.largest[j];
        return {f.top[j], float(p.rate), float(largest * (1.0 + kRoughly)), float(constant), 0.0f, float(none)};
    }
    if (p.kind != kEcp) return {f.top[j], float(p.rate), 0.0f, 0.0f, 0.0f, float(none)};
    float surprisal = float(-log(D(f.inverse_alpha_0[j])).first());  // ln alpha_0, of a label without evidence
    if (p.stabilizer >= kSmallestStabilizer) {
        double share = f.inverse_alpha_0[j];
        // A plain cost is relative to the stabilizer.
        double worst = p.is_plain ? f.low_surprisal[j] / (f.low_gain[j] * p.stabilizer) : exp(D(smaller(f.worst[j], 700.0))).first();
        worst *= 1.0 + kRoughly;
        if (share * kLargestAlpha0 < 1.0) return {f.top[j], float(p.rate), 0.0f, 1e38f, surprisal, float(none)};
        return {f.top[j], float(p.rate), float(__builtin_sqrt(f.largest[j] * worst) * share), float(p.stabilizer * worst), surprisal, float(none)};
    }
    if (p.stabilizer == 0.0) return {f.low[j], float(p.rate * (1.0 + kRoughly)), 0.0f, float(f.worst[j]), surprisal, float(none)};
    return {f.top[j], float(p.rate * (1.0 - kRoughly)), 0.0f, float(f.worst[j] + kLn2), surprisal, float(p.log_stabilizer)};
}

// Lanes that are not negative where a label may be within its limit.
//
// With a label's probability q, its surprisal I, and a limit t, it is within
//
// - LAC: q - e^-t >= 0;
// - Margin: q - max q + t >= 0, of labels below the top;
// - ECP: (utility + stabilizer) max_v C_v - e^-t I >= 0, and by logarithms where the stabilizer is tiny or 0:
//   z / T - 2 I - ln I + t + constant >= 0, or with ln(stabilizer) for the first two; at rank 0.
//
// Exponential and logarithm are rough, and the surprisal ln alpha_0 - ln alpha is made of two tangents above the logarithm.
template <bool BY_LOGARITHMS, class T> INLINE F reach(int32_t kind, int32_t evidence, const Test &t, const Row16<T> &z, const F &demand) {
    F x = narrow(z - T(t.base));
    if (kind != kEcp) return demand + fma(rough_exp(x, t.rate), F(t.scale), F(t.constant));
    F e = narrow(activate(evidence, z));
    F surprisal = larger(F(t.surprisal) - e, fma(e, F(-0.25f), F(t.surprisal + float(kTangentAt4))));
    if (!BY_LOGARITHMS) {
        F root = fma(e, F(t.scale), F(t.scale));
        return fma(demand, surprisal, fma(rough_exp(x, t.rate) * root, root, F(t.constant)));
    }
    F utility = larger(x * t.rate - (surprisal + surprisal), F(t.least));
    return demand + (utility - rough_log(surprisal) + t.constant);
}

// Note the labels of row j that may be within their limits, in their own order; gives how many.
template <class T> int64_t find_possible(Batch<T> &b, int64_t j, const Logits<T> &row, const float *demands) {
    const Test t = test_of(b, j);
    const int32_t kind = b.p.kind, evidence = b.p.evidence;
    const bool by_logarithms = kind == kEcp && b.p.stabilizer < kSmallestStabilizer;
    auto find = [&](auto test) __attribute__((always_inline)) {
        int64_t count = 0;
        for (int64_t i = 0; i < row.n; i += kLanes) {
            int64_t from = row.place(i);
            F lanes = test(row.load(i), F::load(demands + from));
            uint32_t may = ~bits(lanes < F(0.0f)) & kAllLanes;  // also where it is NaN
            if (i > from) may &= kAllLanes << (i - from);       // seen before
            if (may) count = note_bits(b.found, count, from, may);
        }
        return count;
    };
    if (kind == kEcp && evidence == kRelu && !by_logarithms)
        return find([&](const Row16<T> &z, const F &d) __attribute__((always_inline)) { return reach<false>(kEcp, kRelu, t, z, d); });
    if (by_logarithms) return find([&](const Row16<T> &z, const F &d) { return reach<true>(kind, evidence, t, z, d); });
    return find([&](const Row16<T> &z, const F &d) { return reach<false>(kind, evidence, t, z, d); });
}

// Score the sorted candidates from `start` to `stop`, at most eight, each after a count of the labels above it.
template <class T> void score_singles(Batch<T> &b, int64_t j, const Logits<T> &row, int64_t start, int64_t stop) {
    Labels<kBatch> &l = b.labels;
    alignas(64) T z[kSide];
    for (int64_t i = 0; i < kSide; i++) z[i] = T(0) - b.sorted_keys[smaller(start + i, stop - 1)], l.z[i] = double(z[i]);
    if (b.p.needs_rank())
        for (int64_t i = 0; i < stop - start; i += 4) count_above<4>(row, z + i, l.rank + i);
    for (int64_t i = 0; b.p.kind == kMass && i < stop - start; i++) {
        int64_t own = weights(b.p, Row16<T>(z[i]), T(b.facts.top[j])).first();
        int64_t above = weight_above(b.p, row, T(b.facts.top[j]), z[i]);
        l.reach[i] = double(above + own), l.own[i] = double(own);
    }
    score_eight(b.p, b.facts, int(j), l);
}

// The set of row j of a batch, where `row_set` leaves its; gives its size.
template <class T> int64_t row_set_limits(Batch<T> &b, int64_t j, const double *limits, const Limits &l) {
    Logits<T> row = b.row(b.first + j);
    // Only one label is possible, and tests of costs do not know such rows.
    double tight = b.p.kind == kEcp && b.facts.ceiling[j] < 0.0 ? double(kInfinity) : l.tight;
    int64_t kept = 0, count = 0;
    while (true) {
        Walked top{0, double(kInfinity)};
        if (tight > -double(kInfinity)) top = walk_down<true>(b, j, row, limits, tight);
        kept = top.kept, count = 0;
        if (tight < double(kInfinity)) {
            int64_t possible = find_possible(b, j, row, l.demands);
            for (int64_t i = 0; i < possible; i++) {  // those left, and of impossible ones those without a limit
                int32_t label = b.found[i];
                double z = double(row[label]);
                b.found[count] = label, b.keys[count] = T(0) - row[label];
                count += z <= top.left && (z > -double(kInfinity) || limits[label] == double(kInfinity));
            }
        }
        if (count <= (b.p.kind == kMass ? kSingleMasses : kSingles)) break;
        tight = double(kInfinity);
    }
    if (count) sort_candidates(b, count);
    for (int64_t start = 0; start < count; start += kSide) {
        int64_t stop = smaller(start + kSide, count);
        score_singles(b, j, row, start, stop);
        for (int64_t i = start; i < stop; i++) {
            b.scores[kept] = b.labels.score[i - start], b.members[kept] = b.sorted[i];
            kept += b.scores[kept] <= limits[b.sorted[i]];
        }
    }
    return kept;
}

// The sets of the rows at hand; false where there is no memory.
template <class T> bool batch_sets_limits(Batch<T> &b, const Limits &limits, Sets &out) {
    for (int64_t j = 0; j < b.stop - b.first; j++) {
        int64_t size = row_set_limits(b, j, b.job.thresholds, limits);
        sort_set(b, size);
        if (!append_set(b, b.first + j, size, out)) return false;
    }
    return true;
}

}  // namespace EVICP_LEVEL
}  // namespace evicp
