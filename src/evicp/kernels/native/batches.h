// Batches of rows: passes over them one by one, or 16 at a time, and formulas over all of them side by side.
#pragma once
#include "rows.h"

#include <stdlib.h>

#include <new>

namespace evicp {
namespace EVICP_LEVEL {

constexpr int kSlots = 128, kMost = 64;  // candidates of several rows that are scored side by side, and those of one row
constexpr int kFlags = 32;               // labels of a turned row that are flagged in one number
constexpr int64_t kConverted = 1 << 13;  // logits of a batch that are converted should stay in the cache
// How far ln of the sum of log-probabilities e^z may be from 0: in double precision, and where all fit into single.
constexpr double kNormalized = 0x1p-42, kNormalizedSingle = 0x1p-20;
constexpr int kFew = 128;                // up to so many candidates are sorted by comparing all with all

template <class T> struct Batch {
    const Job &job;
    const Parameters p;
    const int64_t n_classes, width;
    const bool is_narrow, is_converted;
    const bool is_widened;  // whether the first pass over a row widens it; other conversions come before
    int64_t first = 0, stop = 0;  // the rows at hand

    // Formulas take eight rows or labels side by side, also where there are fewer: what memory held before may be slow to use.
    Facts<kBatch> facts{};
    Labels<kBatch> labels{};
    alignas(64) T few[kBatch], some[kBatch], many[kBatch], cut[kBatch];
    double threshold[kBatch], demand[kBatch];
    uint32_t flags[kNarrow / kFlags * kBatch + kBatch];
    int32_t begin[kBatch], end[kBatch];  // where a row's candidates are; its only one, where there is just the top
    Facts<kSlots> slots;
    Labels<kSlots> candidates;
    int32_t candidate[kSlots];
    alignas(64) T padded[kLanes];

    // Memory that depends on the number of labels, from one allocation.
    T *copies, *turned, *keys, *sorted_keys;
    double *scores, *scores_to_sort;                   // of the set at hand
    float *demands;                                    // of labels with limits of their own
    int32_t *found, *sorted, *members, *places;        // labels as they are found, sorted, in the set; and what sorting needs

    explicit Batch(const Job &job)
        : job(job), p(job), n_classes(job.n_classes), width(n_classes < kLanes ? kLanes : n_classes),
          is_narrow(p.has_cuts && n_classes <= kNarrow),
          is_converted(!(job.in_place && (is_narrow || n_classes >= kLanes))),
          is_widened(job.type <= kBfloat && !is_narrow && n_classes >= kLanes) {}

    // A batch in memory of its own, or null.
    static Batch *make(const Job &job, bool for_sets) {
        const int64_t n_classes = job.n_classes, room = for_sets ? n_classes + 4 * kFew : 0;
        const int64_t turned = n_classes <= kNarrow ? kBatch * n_classes : 0;
        const int64_t copied = job.in_place && n_classes >= kLanes ? 0 : kBatch * kLanes + larger(n_classes, kConverted) + kLanes;
        constexpr int64_t kLine = 64, kArrays = 11;
        int64_t size = int64_t(sizeof(Batch)) + kArrays * 2 * kLine + (copied + turned) * int64_t(sizeof(T)) +
                       room * int64_t(2 * sizeof(T) + 2 * sizeof(double) + sizeof(float) + 4 * sizeof(int32_t));
        char *memory = static_cast<char *>(aligned_alloc(kLine, size_t((size + kLine) / kLine * kLine)));
        if (memory == nullptr) return nullptr;
        Batch *b = new (memory) Batch(job);
        int64_t used = sizeof(Batch);
        auto place = [&](auto *&array, int64_t n) {
            used = (used + kLine - 1) / kLine * kLine;
            array = reinterpret_cast<decltype(array + 0)>(memory + used);
            used += n * int64_t(sizeof *array) + kLine;
        };
        place(b->copies, copied), place(b->turned, turned), place(b->keys, room), place(b->sorted_keys, room);
        place(b->scores, room), place(b->scores_to_sort, room), place(b->demands, room);
        place(b->found, room), place(b->sorted, room), place(b->members, room), place(b->places, room);
        return b;
    }

    // The logits of row i, and the same as a row of at least 16.
    INLINE const T *raw(int64_t i) const {
        if (is_converted) return copies + (i - first) * width;
        return reinterpret_cast<const T *>(job.logits + i * job.stride);
    }
    INLINE Logits<T> row(int64_t i) {
        if (n_classes >= kLanes || is_converted) return {raw(i), width};
        for (int k = 0; k < kLanes; k++) padded[k] = k < n_classes ? raw(i)[k] : T(-kInfinity);
        return {padded, kLanes};
    }

    // Have the rows from `from` on at hand, at most to `to`; those that the first pass widens only if there is none.
    void fetch(int64_t from, int64_t to, bool has_first_pass = false) {
        int64_t rows = (is_converted ? kConverted : kBatchLogits) / width;
        rows = rows < 1 ? 1 : rows > kBatch ? kBatch : rows;
        first = from, stop = smaller(from + rows, to);
        if (!is_converted || (is_widened && has_first_pass)) return;
        for (int64_t i = first; i < stop; i++) {
            T *copy = copies + (i - first) * width;
            convert(job.logits + i * job.stride, job.type, n_classes, copy);
            for (int64_t k = n_classes; k < width; k++) copy[k] = T(-kInfinity);
        }
    }

    // Take rows, with a label each if there are labels; what passes over them find is in `facts` then, and what is asked of
    // their labels in `labels`. Gives the first row that cannot be used, or -1.
    template <bool HAS_LABEL> int64_t take(int64_t from, int64_t to) {
        fetch(from, to, true);
        int64_t bad = kUsable;
        if (is_narrow) {
            for (int64_t i = first; i < stop && bad < 0; i += kLanes)
                bad = p.kind == kEcp ? note_turned<HAS_LABEL, true>(i) : note_turned<HAS_LABEL, false>(i);
        } else {
            for (int64_t i = first; i < stop && bad < 0; i++) bad = note_row<HAS_LABEL>(i) ? kUsable : i;
        }
        if (bad >= 0) return bad;
        finish_rows(p, facts, int(stop - first));
        if (p.kind == kLac && p.temperature == 1.0) keep_logarithms();
        return kUsable;
    }

    // Rows whose probabilities e^z sum to 1, up to rounding, hold log-probabilities, which are taken as they are.
    void keep_logarithms() {
        for (int64_t j = 0; j < stop - first; j++) {
            double away = __builtin_fabs(facts.top[j] + facts.log_total[j]);
            if (!(facts.top[j] < 0.0 && away <= kNormalizedSingle)) continue;
            if (away <= kNormalized || fits_single(raw(first + j))) facts.top[j] = facts.log_total[j] = 0.0;
        }
    }
    bool fits_single(const T *z) const {
        for (int64_t k = 0; k < n_classes; k++)
            if (T(float(z[k])) != z[k]) return false;
        return true;
    }

    // The first pass over row i.
    template <bool HAS_LABEL> INLINE Survey<T> first_pass(int64_t i, const Logits<T> &row, int64_t label) const {
        if constexpr (sizeof(T) == 4) {
            if (is_widened) return job.type == kHalf ? widen_row<HAS_LABEL, kHalf>(i, label) : widen_row<HAS_LABEL, kBfloat>(i, label);
        }
        bool is_ranked = HAS_LABEL && p.needs_rank();
        return is_ranked ? survey<true>(row, row[label]) : survey<false>(row, T(0));
    }
    template <bool HAS_LABEL, int TYPE> NEVER_INLINE Survey<T> widen_row(int64_t i, int64_t label) const {
        const char *from = job.logits + i * job.stride;
        float *to = copies + (i - first) * width, mark;
        convert(from + 2 * label, TYPE, 1, &mark);
        return survey<HAS_LABEL>(Logits<T>{to, width}, mark, [from, to](int64_t k) __attribute__((always_inline)) {
            __builtin_prefetch(from + 2 * (k + kAhead));
            Row16<float> z = widen_16<TYPE>(from + 2 * k);
            z.store(to + k);
            return z;
        });
    }

    template <bool HAS_LABEL> bool note_row(int64_t i) {
        Logits<T> z = row(i);
        int64_t j = i - first, label = HAS_LABEL ? job.labels[i] : 0;
        Survey<T> s = first_pass<HAS_LABEL>(i, z, label);
        if (!s.usable) return false;
        facts.top[j] = s.top, facts.low[j] = s.low, facts.ceiling[j] = 0.0;
        few[j] = s.few, some[j] = s.some, many[j] = s.many;
        if (HAS_LABEL) labels.z[j] = z[label], labels.rank[j] = double(s.rank);
        facts.v[j] = p.randomized ? uniform(z, uint32_t(p.seed)) : 1.0;
        if (p.kind == kMass) {
            facts.mass[j] = double(total_weight(p, z, s.top));
            if (HAS_LABEL) {
                int64_t own = weights(p, Row16<T>(z[label]), s.top).first();
                int64_t above = s.rank ? weight_above(p, z, s.top, z[label]) : 0;
                labels.reach[j] = double(above + own), labels.own[j] = double(own);
            }
        } else if (p.kind == kEcp) {
            Sums found = sums<true>(z, s.top, T(p.rate), s.low);
            facts.exponentials[j] = found.exponentials, facts.low_rank[j] = double(found.low_rank);
            facts.rest[j] = evidence_but_largest(z, p.evidence, s) + (p.K - 1.0);
            if (s.top == s.low && found.shared == 1) facts.ceiling[j] = kLowest;
        } else if (!p.is_rank()) {
            Sums found = sums<false>(z, s.top, T(p.rate), s.low);
            facts.exponentials[j] = found.exponentials;
            if (p.kind == kMargin) facts.second[j] = second_largest(z, s.top, found.shared);
        }
        return true;
    }

    // Columns of 16 rows from row i on, so that each is in a lane; where there are fewer the last one is repeated.
    void turn(int64_t i, T *to) const {
        const T *rows[kLanes];
        for (int r = 0; r < kLanes; r++) rows[r] = raw(i + r < stop ? i + r : stop - 1);
        [[maybe_unused]] constexpr int64_t kBlock = 16 / sizeof(T);
        int64_t k = 0;
#if defined(__x86_64__)
        for (int64_t next = 0; n_classes >= kBlock && k < n_classes; next += kBlock) {
            k = smaller(next, n_classes - kBlock);
            turn_block(rows, k, to + k * kLanes);
            k = next + kBlock;
        }
#endif
        for (; k < n_classes; k++)
            for (int r = 0; r < kLanes; r++) to[k * kLanes + r] = rows[r][k];
    }
#if defined(__x86_64__)
    // Four logits of each row from number k on: columns of 16, by way of vectors with those of every fourth row.
    static INLINE void turn_block(const float *const *rows, int64_t k, float *to) {
        using F = Row16<float>;
        F a = fours(rows, k), b = fours(rows + 1, k), c = fours(rows + 2, k), d = fours(rows + 3, k);
        F ab = interleave_lower(a, b), cd = interleave_lower(c, d);
        join_lower(ab, cd).store(to), join_upper(ab, cd).store(to + kLanes);
        ab = interleave_upper(a, b), cd = interleave_upper(c, d);
        join_lower(ab, cd).store(to + 2 * kLanes), join_upper(ab, cd).store(to + 3 * kLanes);
    }
    static INLINE void turn_block(const double *const *rows, int64_t k, double *to) {
        for (int r = 0; r < kLanes; r += 2) {
            __m128d a = _mm_loadu_pd(rows[r] + k), b = _mm_loadu_pd(rows[r + 1] + k);
            _mm_store_pd(to + r, _mm_unpacklo_pd(a, b)), _mm_store_pd(to + kLanes + r, _mm_unpackhi_pd(a, b));
        }
    }
#endif

    // As `note_row` for 16 rows, for LAC and the usual ECP; gives the first that cannot be used, or -1.
    template <bool HAS_LABEL, bool IS_ECP> int64_t note_turned(int64_t i) {
        constexpr bool kHasLow = IS_ECP || !HAS_LABEL;  // without ranks the label's score does not need it
        const int64_t j = i - first;
        T *columns = turned + j * n_classes;
        turn(i, columns);
        alignas(64) T marks[kLanes] = {};
        if (HAS_LABEL)
            for (int r = 0; r < kLanes; r++) {
                int64_t k = i + r < stop ? i + r : stop - 1;
                marks[r] = raw(k)[job.labels[k]];
            }
        Row16<T> mark = Row16<T>::load(marks), rest(T(0)), top{T(-kInfinity)}, low{T(kInfinity)}, e(T(0));
        Counts<T> rank(0), below(0), low_rank(0);
        for (int64_t k = 0; k < n_classes; k++) {
            Row16<T> z = Row16<T>::load(columns + k * kLanes);
            if (IS_ECP) {
                look<HAS_LABEL>(z, rest, top, rank, mark);
            } else {
                rest = rest + larger(Row16<T>(T(0)), z), top = larger(z, top);
            }
            if (kHasLow) low = smaller(z, low);
        }
        Mask<T, kLanes> sound = ((rest + (top - top)) == (rest + (top - top))) & (Row16<T>(sizeof(T) == 8 ? T(kLargestLogit) : T(kInfinity)) >= top);
        if (uint32_t bad = ~bits(sound) & kAllLanes) return i + __builtin_ctz(bad);
        if (kHasLow && bits(low > Row16<T>(T(-kInfinity))) != kAllLanes) {  // somewhere labels are impossible
            low = Row16<T>(T(kInfinity));
            for (int64_t k = 0; k < n_classes; k++)
                low = smaller(finite_or(Row16<T>::load(columns + k * kLanes), T(kInfinity)), low);
        }
        const char *ahead = reinterpret_cast<const char *>(raw(i) + kLanes * n_classes);
        for (int64_t k = 0; k < n_classes; k++) {
            __builtin_prefetch(ahead + k * kLanes * int64_t(sizeof(T)));
            Row16<T> z = Row16<T>::load(columns + k * kLanes);
            e = e + select(count_greater(below, top, z), exp_times(z - top, T(p.rate)), Row16<T>(T(0)));
            if (IS_ECP) count_greater(low_rank, z, low);
        }
        widen(top).store(facts.top + j), widen(low).store(facts.low + j), widen(rest).store(facts.rest + j);
        widen(e).store(facts.exponentials + j), widen(mark).store(labels.z + j);
        store_counts(Counts<T>(int(n_classes)) - below, facts.v + j), store_counts(low_rank, facts.low_rank + j), store_counts(rank, labels.rank + j);
        for (int64_t m = j; m < j + kLanes; m++) {
            if (facts.rest[m] == double(kInfinity) && first + m < stop) facts.rest[m] = huge_evidence_but_largest(row(first + m));
            facts.ceiling[m] = facts.v[m] == 1.0 && facts.top[m] == facts.low[m] ? kLowest : 0.0;
            facts.exponentials[m] += facts.v[m] - 1.0;
            facts.rest[m] += p.K - 1.0;
        }
        return kUsable;
    }
    static INLINE void store_counts(const Counts<T> &counts, double *to) {
        alignas(64) decltype(counts.first()) each[kLanes];
        counts.store(each);
        for (int r = 0; r < kLanes; r++) to[r] = double(each[r]);
    }
};

}  // namespace EVICP_LEVEL
}  // namespace evicp
