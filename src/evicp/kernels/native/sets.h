// A row's set: candidates from the top, ordered, until one is beyond the threshold.
//
// Every score here falls as the logit rises. Where a threshold can be turned into a logit, all candidates of a row are
// known before any is scored, and if they are few, those of many rows are scored side by side.
#pragma once
#include "batches.h"

namespace evicp {
namespace EVICP_LEVEL {

constexpr int64_t kShort = 2048;  // in rows up to this long more candidates are found few at a time, in longer ones in fewer passes
constexpr double kLargestLog = 60.0;  // no logarithm of a cost is further from 0, with a plain stabilizer
// A label this far beyond the threshold, relative to the numbers its score was made of, ends the walk: far more than
// rounding can do to the order of two scores, so that no label behind it can be within the threshold.
constexpr double kSlack = 1e-9;
constexpr double kRoughly = 1e-4;        // far more than rounding in float32 takes
constexpr double kLargestAlpha0 = 1e30;  // larger sums of evidence would take rough tests out of float32's range
constexpr double kLogError = 0.061;      // how much less than a logarithm `rough_log` may be
constexpr int kHalvings = 5;             // how often the interval in which a cut lies is halved

// Sort a few keys with their labels, ascending, equals in their own order: the smaller ones of each are counted, without a
// branch that could be mispredicted. Keys are read by 16, and `places` has room for as many and for two of each label.
template <class X> void sort_few(const X *keys, const int32_t *labels, X *to_keys, int32_t *to_labels, int count, int32_t *places) {
    int32_t *taken = places + kFew + kLanes;  // how many with this key are placed already
    for (int start = 0; start < count; start += kLanes) {
        Row16<X> own = Row16<X>::load(keys + start);
        Counts<X> smaller_ones(0);
        for (int i = 0; i < count; i++) count_greater(smaller_ones, own, Row16<X>(keys[i]));
        alignas(64) Whole<X> each[kLanes];
        smaller_ones.store(each);
        for (int r = 0; r < kLanes; r++) places[start + r] = int32_t(each[r]), taken[start + r] = 0;
    }
    for (int i = 0; i < count; i++) {
        int to = places[i] + taken[places[i]]++;
        to_keys[to] = keys[i], to_labels[to] = labels[i];
    }
}

// Bits that compare, as a whole number, as the number does.
template <class T> INLINE Unsigned<T> ordered_bits(T x) {
    Unsigned<T> bits;
    memcpy(&bits, &x, sizeof bits);
    constexpr int kSign = 8 * int(sizeof(T)) - 1;
    return bits ^ ((bits >> kSign) ? ~Unsigned<T>(0) : Unsigned<T>(1) << kSign);
}
// Sort keys with their labels byte by byte, the lowest first, leaving out the bytes that all keys share.
template <class T> void sort_many(T *keys, int32_t *labels, T *to_keys, int32_t *to_labels, int64_t count) {
    T *from = keys, *to = to_keys;
    int32_t *from_labels = labels, *to_label = to_labels;
    Unsigned<T> differing = 0, first = ordered_bits(keys[0]);
    for (int64_t i = 0; i < count; i++) differing |= ordered_bits(keys[i]) ^ first;
    for (int shift = 0; shift < 8 * int(sizeof(T)); shift += 8) {
        if (((differing >> shift) & 255) == 0) continue;
        int64_t place[257] = {};
        for (int64_t i = 0; i < count; i++) place[1 + ((ordered_bits(from[i]) >> shift) & 255)]++;
        for (int digit = 0; digit < 256; digit++) place[digit + 1] += place[digit];
        for (int64_t i = 0; i < count; i++) {
            int64_t at = place[(ordered_bits(from[i]) >> shift) & 255]++;
            to[at] = from[i], to_label[at] = from_labels[i];
        }
        T *keys_before = from;
        int32_t *labels_before = from_labels;
        from = to, from_labels = to_label, to = keys_before, to_label = labels_before;
    }
    if (from == keys) memcpy(to_keys, keys, size_t(count) * sizeof(T)), memcpy(to_labels, labels, size_t(count) * 4);
}
template <class X> INLINE void sort(X *keys, int32_t *labels, X *to_keys, int32_t *to_labels, int64_t count, int32_t *places) {
    if (count <= kFew) {
        sort_few(keys, labels, to_keys, to_labels, int(count), places);
    } else {
        sort_many(keys, labels, to_keys, to_labels, count);
    }
}
// Sort the candidates by their keys; and the set by its scores, which nearly always is in order.
template <class T> INLINE void sort_candidates(Batch<T> &b, int64_t count) {
    sort(b.keys, b.found, b.sorted_keys, b.sorted, count, b.places);
}
template <class T> void sort_set(Batch<T> &b, int64_t count) {
    bool is_sorted = true;
    for (int64_t i = 1; i < count; i++) is_sorted = is_sorted && b.scores[i - 1] <= b.scores[i];
    if (is_sorted) return;
    for (int64_t i = 0; i < count; i++) b.found[i] = b.members[i], b.scores_to_sort[i] = b.scores[i];
    sort(b.scores_to_sort, b.found, b.scores, b.members, count, b.places);
}

// Add the numbers of the bits that are set, counted from `from`, to `count` labels. The first two are noted whether they
// are set or not: branches would be mispredicted.
INLINE int64_t note_bits(int32_t *labels, int64_t count, int64_t from, uint64_t bits) {
    int64_t total = count + __builtin_popcountll(bits);
    for (int64_t k = count; k < count + 2; k++, bits &= bits - 1) labels[k] = int32_t(from + (bits ? __builtin_ctzll(bits) : 0));
    for (int64_t k = count + 2; k < total; k++, bits &= bits - 1) labels[k] = int32_t(from + __builtin_ctzll(bits));
    return total;
}

// Note all labels with a logit of at least `cut` and below `upper`, in their own order; gives how many. A cut of -inf
// stands for all labels, impossible ones included.
template <class T> int64_t find_at_least(Batch<T> &b, const Logits<T> &row, T cut, T upper) {
    int64_t count = 0, hits = 0, whole = row.n / (2 * kLanes) * (2 * kLanes);
    if (cut == T(-kInfinity)) {
        for (int64_t k = 0; k < b.n_classes; k++) b.found[k] = int32_t(k);
        return b.n_classes;
    }
    const Row16<T> low(cut), high(upper);
    int32_t *places = b.places, *found = b.found;
    for (int64_t i = 0; i < whole; i += 2 * kLanes) {  // where candidates are, without a branch
        places[hits] = int32_t(i);
        hits += bits_at_least(larger(Row16<T>::load(row.z + i), Row16<T>::load(row.z + i + kLanes)), low) != 0;
    }
    auto between = [&](const Row16<T> &z) __attribute__((always_inline)) {
        return bits_at_least(z, low) & ~bits_at_least(z, high);
    };
    for (int64_t k = 0; k < hits; k++) {
        int64_t i = places[k];
        uint64_t second = between(Row16<T>::load(row.z + i + kLanes));
        count = note_bits(found, count, i, between(Row16<T>::load(row.z + i)) | second << kLanes);
    }
    for (int64_t i = whole; i < row.n; i += kLanes) count = note_bits(found, count, row.place(i), between(row.load(i)));
    return count;
}
template <class T> INLINE void note_keys(Batch<T> &b, const Logits<T> &row, int64_t count) {
    for (int64_t i = 0; i < count; i++) b.keys[i] = T(0) - row[b.found[i]];
}

// Where a walk down the candidates has come to: the labels with one logit.
template <class T> struct Place {
    int64_t first = 0;  // how many labels are above the candidates at hand
    T key = T(__builtin_nan(""));
    int64_t rank = 0, above = 0, own = 0;  // of the labels with this key: their rank, the weight above them, and of each
};

// Score the sorted candidates from `start` to `stop`, at most eight, as labels of row j.
template <class T> void score_side(Batch<T> &b, int64_t j, int64_t start, int64_t stop, Place<T> &place) {
    const Parameters &p = b.p;
    Labels<kBatch> &l = b.labels;
    alignas(64) int64_t weight[kLanes];
    if (p.kind == kMass) weights(p, Row16<T>(T(0)) - Row16<T>::load(b.sorted_keys + start), T(b.facts.top[j])).store(weight);
    for (int64_t i = start; i < stop; i++) {
        if (b.sorted_keys[i] != place.key) {
            place.above += place.own * (place.first + i - place.rank);
            place.key = b.sorted_keys[i], place.rank = place.first + i;
            place.own = p.kind == kMass ? weight[i - start] : 0;
        }
        l.z[i - start] = 0.0 - double(b.sorted_keys[i]), l.rank[i - start] = double(place.rank);
        l.reach[i - start] = double(place.above + place.own), l.own[i - start] = double(place.own);
    }
    score_eight(p, b.facts, int(j), l);
}

// What scores must be beyond to end a walk down row j.
template <class T> INLINE double with_slack(const Batch<T> &b, int64_t j, double threshold) {
    double most = b.p.is_plain ? kLargestLog : b.p.kind == kEcp ? __builtin_fabs(b.facts.worst[j]) : 0.0;
    return threshold + kSlack * (1.0 + __builtin_fabs(threshold) + most);
}

// A cut that at least `wanted` labels reach, and if bisection finds one, at most `most`.
template <class T> T lower_cut(const Logits<T> &row, T bottom, T cut, int64_t wanted, int64_t most) {
    if (most >= row.n) return bottom;
    T low = bottom, high = cut;
    for (int k = 0; k < 20; k++) {
        T middle = T(0.5 * double(low) + 0.5 * double(high));
        int64_t count = count_above(row, middle);
        if (count < wanted) {
            high = middle;
        } else {
            low = middle;
            if (count <= most) break;
        }
    }
    return low;
}
// A cut that lets in more candidates of row j than the `count` so far: several times as many, or `kFew` more.
template <class T> T next_cut(const Batch<T> &b, int64_t j, const Logits<T> &row, T cut, int64_t count) {
    if (!b.is_narrow && cut > b.some[j]) return b.some[j];
    if (!b.is_narrow && cut > b.many[j]) return b.many[j];
    bool is_short = row.n <= kShort;
    return lower_cut(row, T(b.facts.low[j]), cut, is_short ? count + kFew / 2 : 4 * count, is_short ? count + kFew : 8 * count);
}

// What the walk down a row found: how many labels are within their limits, and the largest logit of those left.
struct Walked {
    int64_t kept;
    double left;
};

// Labels of row j from the top until their scores are beyond `most`, the largest limit there is for them; those within their
// own limits (one for all, or of each label) go to `members` and `scores`. The first candidates are a few from the top. If
// all are within the limit the next are those down to a lower cut, so that the work grows with the size of the set.
template <bool BY_LABEL, class T> Walked walk_down(Batch<T> &b, int64_t j, const Logits<T> &row, const double *limits, double most) {
    const double beyond = with_slack(b, j, most), low = b.facts.low[j];
    T upper{T(kInfinity)}, cut = BY_LABEL ? (b.is_narrow ? T(low) : b.some[j]) : (b.is_narrow ? b.cut[j] : b.few[j]);
    if (most == double(kInfinity)) cut = T(-kInfinity);
    int64_t kept = 0;
    Place<T> place;
    while (true) {
        int64_t count = find_at_least(b, row, cut, upper);
        note_keys(b, row, count);
        if (count) sort_candidates(b, count);
        for (int64_t start = 0; start < count; start += kSide) {
            int64_t stop = smaller(start + kSide, count);
            score_side(b, j, start, stop, place);
            for (int64_t i = start; i < stop; i++) {
                double value = b.labels.score[i - start];
                if (value > beyond) return {kept, 0.0 - double(b.sorted_keys[i])};
                b.scores[kept] = value, b.members[kept] = b.sorted[i];
                kept += value <= (BY_LABEL ? limits[b.sorted[i]] : most);
            }
        }
        place.first += count;
        if (double(cut) <= low) return {kept, -double(kInfinity)};
        upper = cut, cut = next_cut(b, j, row, cut, place.first);
    }
}

// The set of row j of a batch under one threshold, in `members` and `scores`; gives its size.
template <class T> int64_t row_set(Batch<T> &b, int64_t j, double threshold) {
    return walk_down<false>(b, j, b.row(b.first + j), &threshold, threshold).kept;
}

// ---------------------------------------------------------------------------------------------------------------
// Small sets

// What a threshold asks of labels, e^-t, or less.
INLINE double demand_of(double threshold) {
    return exp(D(smaller(larger(-threshold, -700.0), 700.0))).first() * (1.0 - kRoughly);
}

// Cuts of the 16 rows from number j of a batch on, for ECP: between the lowest logit and the top, halved in lanes.
//
// With a label's surprisal I and a threshold t, it is beyond if (utility + stabilizer) max_v C_v < e^-t I at rank 0, and so
// are all below it. Logarithms are rough, and err towards a lower cut, as does all rounding.
template <class T> void halve_cuts(Batch<T> &b, int j) {
    using F = Lanes<float, kLanes>;
    auto column = [j](const double *from) __attribute__((always_inline)) { return Lanes<double, kLanes>::load(from + j); };
    Row16<T> cut = convert<T>(column(b.facts.low)), step = convert<T>(column(b.facts.top)) - cut, top = step + cut;
    F demand = narrow(column(b.demand)), share = narrow(column(b.facts.inverse_alpha_0));
    F total = narrow(column(b.facts.exponentials)) + 1.0f;
    float rate = float((1.0 - kRoughly) * b.p.rate), stabilizer = float(b.p.stabilizer);
    for (int k = 0; k < kHalvings; k++) {
        step = step * T(0.5);
        Row16<T> z = cut + step;
        F e = narrow(larger(Row16<T>(T(0)), z));
        F surprisal = rough_log((e + 1.0f) * share) * -1.0f - float(kLogError);
        F least = surprisal * demand - stabilizer;
        F most = fma(surprisal, F(-2.0f), narrow(z - top) * rate);
        Lanes<int32_t, kLanes> is_beyond = (least > F(1e-30f)) & (rough_log(least * total) > most);
        cut = select(convert<T>(select(is_beyond, F(1.0f), F(0.0f))) > Row16<T>(T(0)), z, cut);
    }
    cut.store(b.cut + j);
}

// For each row of a batch its threshold, and a logit below which no label is within it; -inf where that is +inf.
template <class T> void find_cuts(Batch<T> &b) {
    const Parameters &p = b.p;
    const Job &job = b.job;
    const int count = int(b.stop - b.first);
    for (int j = 0; j < count; j++) b.threshold[j] = job.thresholds[job.n_thresholds > 1 ? b.first + j : 0];
    if (!p.has_cuts) return;
    if (p.kind == kLac) {  // the score is the logit but for constants
        for (int j = 0; j < count; j++) {
            double t = p.temperature * b.threshold[j], total = p.temperature * b.facts.log_total[j];
            double slack = kSlack * (__builtin_fabs(b.facts.top[j]) + total + __builtin_fabs(t));
            b.cut[j] = T(b.facts.top[j] + total - t - slack);  // NaN, which no label reaches, where t is -inf
        }
    } else {
        double same = demand_of(b.threshold[0]);
        for (int j = 0; j < count; j++) {
            double demand = job.n_thresholds > 1 ? demand_of(b.threshold[j]) : same;
            demand = demand * b.facts.low_gain[j] * p.stabilizer / b.facts.low_surprisal[j];  // divided by the largest cost
            bool is_huge = b.facts.inverse_alpha_0[j] * kLargestAlpha0 < 1.0;  // all are candidates
            b.demand[j] = is_huge ? 0.0 : smaller(1e30, demand);
        }
        for (int j = 0; j < count; j += kLanes) halve_cuts(b, j);
        for (int j = 0; j < count; j++)
            if (b.facts.ceiling[j] < 0.0) b.cut[j] = T(b.facts.top[j]);
    }
    for (int j = 0; j < count; j++)
        if (b.threshold[j] == double(kInfinity)) b.cut[j] = T(-kInfinity);
}

// For each row of a batch of turned ones, flag the labels that reach its cut.
template <class T> void flag_candidates(Batch<T> &b) {
    for (int j = 0; j < int(b.stop - b.first); j += kLanes) {
        const T *columns = b.turned + j * b.n_classes;
        Row16<T> cut = Row16<T>::load(b.cut + j);
        for (int64_t from = 0; from < b.n_classes; from += kFlags) {
            Counts<T> flags(0);
            for (int64_t k = smaller(from + kFlags, b.n_classes) - 1; k >= from; k--)
                flags = flags + flags - (Row16<T>::load(columns + k * kLanes) >= cut);
            alignas(64) decltype(flags.first()) each[kLanes];
            flags.store(each);
            for (int r = 0; r < kLanes; r++) b.flags[from / kFlags * kBatch + j + r] = uint32_t(each[r]);
        }
    }
}
template <class T> INLINE int64_t gather_flagged(Batch<T> &b, int64_t j) {
    int64_t count = 0;
    for (int64_t from = 0; from < b.n_classes; from += 2 * kFlags) {
        const uint32_t *flags = b.flags + from / kFlags * kBatch + j;
        uint64_t next = from + kFlags < b.n_classes ? flags[kBatch] : 0;
        count = note_bits(b.found, count, from, flags[0] | next << kFlags);
    }
    return count;
}

// What a candidate's score needs to know of its row.
template <class T> INLINE void note_row_of(Batch<T> &b, int64_t slot, int64_t j) {
    Facts<kSlots> &to = b.slots;
    const Facts<kBatch> &from = b.facts;
    to.top[slot] = from.top[j], to.log_total[slot] = from.log_total[j];
    if (b.p.kind != kEcp) return;
    to.largest[slot] = from.largest[j], to.alpha[slot] = from.alpha[j], to.rest[slot] = from.rest[j];
    to.inverse_alpha_0[slot] = from.inverse_alpha_0[j], to.low_surprisal[slot] = from.low_surprisal[j];
    to.low_gain[slot] = from.low_gain[j], to.ceiling[slot] = from.ceiling[j];
}

// Score the candidates of the rows from number j on; gives the number of the first row that is left for `row_set`: one with
// too many candidates, or where there was no room left.
template <class T> int64_t take_candidates(Batch<T> &b, int64_t j) {
    Labels<kSlots> &c = b.candidates;
    int64_t filled = 0, count = b.stop - b.first;
    for (; j < count && filled <= kSlots - kMost; j++) {
        Logits<T> row{b.raw(b.first + j), b.is_narrow ? b.n_classes : b.width};
        int64_t found = kMost + 1;
        if (b.is_narrow) {
            found = gather_flagged(b, j);
        } else if (!(b.cut[j] < b.many[j])) {
            found = find_at_least(b, row, b.cut[j], T(kInfinity));
        }
        if (found > kMost) break;
        note_keys(b, row, found);
        if (found == 1) {
            b.sorted[0] = b.found[0], b.sorted_keys[0] = b.keys[0];
        } else {
            sort_candidates(b, found);
        }
        b.begin[j] = int32_t(filled);
        for (int64_t k = 0, rank = 0; k < found; k++, filled++) {
            rank = k > 0 && b.sorted_keys[k] == b.sorted_keys[k - 1] ? rank : k;
            note_row_of(b, filled, j);
            b.candidate[filled] = b.sorted[k];
            c.z[filled] = 0.0 - double(b.sorted_keys[k]), c.rank[filled] = double(rank);
        }
        b.end[j] = int32_t(filled);
    }
    for (int64_t k = filled; k % kSide; k++) note_row_of(b, k, 0), c.z[k] = c.rank[k] = 0.0;
    score_labels(b.p, b.slots, c, int(filled));
    return j;
}

// Append the set of row j of a batch, whose candidates have been scored; false if rounding has put scores out of order.
template <class T> INLINE bool append_small_set(Batch<T> &b, int64_t j, Sets &out) {
    int64_t kept = 0;
    bool is_sorted = true;
    double before = -double(kInfinity);
    for (int m = b.begin[j]; m < b.end[j]; m++) {
        double value = b.candidates.score[m];
        out.labels[out.used + kept] = b.candidate[m];
        if (b.job.is_scored) out.scores[out.used + kept] = value;
        kept += value <= b.threshold[j];
        is_sorted = is_sorted & (before <= value);
        before = value;
    }
    if (is_sorted) b.job.ends[b.first + j] = out.used += kept;
    return is_sorted;
}

// Append the set of row i, in `members` and `scores`, to those before; false where there is no memory.
template <class T> bool append_set(const Batch<T> &b, int64_t i, int64_t size, Sets &out) {
    if (out.used + size > out.size && !out.make_room(size, b.job.is_scored)) return false;
    if (size) memcpy(out.labels + out.used, b.members, size_t(size) * sizeof(int32_t));  // there may be no labels yet
    if (size && b.job.is_scored) memcpy(out.scores + out.used, b.scores, size_t(size) * sizeof(double));
    b.job.ends[i] = out.used += size;
    return true;
}

// The sets of the rows at hand; false where there is no memory.
template <class T> bool batch_sets(Batch<T> &b, Sets &out) {
    const int64_t count = b.stop - b.first;
    find_cuts(b);
    if (b.is_narrow) flag_candidates(b);
    int64_t ready = 0;  // the first row whose candidates have not been scored
    for (int64_t j = 0; j < count; j++) {
        if (j == ready && b.p.has_cuts) ready = take_candidates(b, j);
        if (out.used + kSlots > out.size && !out.make_room(kSlots, b.job.is_scored)) return false;
        if (j < ready && append_small_set(b, j, out)) continue;
        int64_t size = row_set(b, j, b.threshold[j]);
        ready = ready > j ? ready : j + 1;
        sort_set(b, size);
        if (!append_set(b, b.first + j, size, out)) return false;
    }
    return true;
}

}  // namespace EVICP_LEVEL
}  // namespace evicp
