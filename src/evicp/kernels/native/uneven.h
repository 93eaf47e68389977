// ECP with base rates or a utility of the user's own: scores need not fall as the logit rises.
//
// The largest cost and the labels within a threshold can be anywhere. All labels' costs are bounded in float32, for the
// highest and the lowest rank; the few that the bounds leave open get their ranks counted and their costs computed. Where
// they are many, or numbers beyond float32, all labels are ordered instead. A label's score is the same bits either way.
#pragma once
#include "label_limits.h"

namespace evicp {
namespace EVICP_LEVEL {

constexpr int64_t kOpen = 64;  // more labels than this are not looked at one by one
constexpr int kLevels = 8;     // labels that reach so many keys are counted, which bounds ranks from above
constexpr double kRounding = 4e-6;  // more than rounding does to a bound in float32
constexpr int kRounds = 4;      // how often the ranks of a few labels are counted to bound others'

template <class T> struct Uneven {
    Batch<T> &b;
    const Job &job;
    const Parameters &p;
    const int64_t n;     // labels
    double *alpha, *lost;  // e + K pi, rounded, and what rounding took (Knuth's two-sum): the first keys of ranks
    double *prior, *pi;    // K pi and pi; 1 where base rates are uniform
    double *cost, *rank;   // of all labels, where all are ordered
    float *least, *most;   // bounds of costs
    int32_t *open;         // labels that bounds leave open
    void *memory;

    // What is known of the row at hand.
    Logits<T> row{};
    const double *phi = nullptr;
    Row s{};
    double worst = 0.0;  // the largest cost; its logarithm, where costs are not plain
    bool is_certain = false;  // whether only one label is possible
    bool is_dense = false;    // whether all labels' costs are known

    explicit Uneven(Batch<T> &b) : b(b), job(b.job), p(b.p), n(b.n_classes) {
        int64_t room = (n + 2 * kLanes + 15) / 16 * 16;
        memory = aligned_alloc(64, size_t(room * (6 * 8 + 3 * 4 + 4)));
        if (memory == nullptr) return;
        double *next = static_cast<double *>(memory);
        double **arrays[] = {&alpha, &lost, &prior, &pi, &cost, &rank};
        for (double **each : arrays) *each = next, next += room;
        least = reinterpret_cast<float *>(next), most = least + room, open = reinterpret_cast<int32_t *>(most + room);
        for (int64_t k = 0; k < room; k++) {
            pi[k] = k < n ? (job.rates ? job.rates[k] : 1.0) : 0.0;
            prior[k] = k < n ? (job.rates ? double(n) * job.rates[k] : 1.0) : 0.0;
        }
    }
    ~Uneven() { free(memory); }
    Uneven(const Uneven &) = delete;
    Uneven &operator=(const Uneven &) = delete;

    INLINE Row16<T> logits(int64_t k) const {  // 16 from number k on, -inf beyond the last
        if (k + kLanes <= row.n) return Row16<T>::load(row.z + k);
        alignas(64) T z[kLanes];
        for (int i = 0; i < kLanes; i++) z[i] = k + i < row.n ? row.z[k + i] : T(-kInfinity);
        return Row16<T>::load(z);
    }

    // Take row i; false where it cannot be used.
    bool take(int64_t i) {
        row = b.row(i);
        phi = job.utility ? job.utility + i * job.utility_stride : nullptr;
        Survey<T> found = survey<false>(row, T(0));
        if (!found.usable) return false;
        Sums sum = sums<false>(row, found.top, T(p.rate), found.low);
        is_certain = found.top == found.low && sum.shared == 1;
        Lanes<double, kLanes> tops(0.0), rest(0.0);
        for (int64_t k = 0; k < n; k += kLanes) {
            using W = Lanes<double, kLanes>;
            W e = widen(activate(p.evidence, logits(k))), own = W::load(prior + k), a = e + own, share = a - e;
            ((e - (a - share)) + (own - share)).store(lost + k);
            a.store(alpha + k);
            rest = rest + smaller(tops, a), tops = larger(a, tops);
        }
        alignas(64) double each[kLanes], others[kLanes];
        tops.store(each), rest.store(others);
        double largest_alpha = 0.0, total = 0.0;
        for (int k = 0; k < kLanes; k++) {
            total += others[k] + smaller(largest_alpha, each[k]);
            largest_alpha = larger(each[k], largest_alpha);
        }
        s.top = D(double(found.top)), s.low = D(double(found.low));
        s.largest = D(1.0 / (1.0 + sum.exponentials)), s.log_total = log1p(D(sum.exponentials));
        s.alpha = D(largest_alpha), s.rest = D(total), s.inverse_alpha_0 = D(1.0 / (largest_alpha + total));
        bool is_huge = double(found.top) > kLargestAlpha0 || double(found.low) < -kLargestAlpha0;
        is_dense = !p.is_plain || is_huge || s.inverse_alpha_0.first() * kLargestAlpha0 < 1.0;
        find_worst();
        return true;
    }

    // pi I / (phi p^2 (1 - r/K) + stabilizer) of eight labels, in units of 1 / stabilizer, or its logarithm.
    INLINE D cost_of(const D &z, const D &own_alpha, const D &own_pi, const D &own_phi, const D &own_rank) const {
        D I = surprisal(s, own_alpha), scaling = (p.K - own_rank) * (1.0 / p.K), share = own_alpha * s.inverse_alpha_0;
        if (p.is_plain) {
            D utility = phi ? own_phi : probability(p, s, z);
            return own_pi * I / (utility * (share * share * scaling) * (1.0 / p.stabilizer) + 1.0);
        }
        D log_phi = phi ? select(own_phi > D(0.0), log(larger(own_phi, D(1e-300))), D(-1e300)) : shifted(p, s, z) - s.log_total;
        if (p.stabilizer == 0.0) {
            if (!phi) log_phi = smaller((z - s.low) * p.rate, D(1e308));
            return log(own_pi) + (log(I) + 2.0 * I - log(scaling) - log_phi);
        }
        return log(own_pi) + (log(I) - log_add_exp(log_phi - 2.0 * I + log(scaling), D(p.log_stabilizer)));
    }
    // Costs of `count` labels at these ranks, eight at a time.
    NEVER_INLINE void find_costs(const int32_t *labels, int64_t count, const double *ranks, double *costs) {
        for (int64_t k = 0; k < count; k += kSide) {
            alignas(64) double z[kSide], a[kSide], rate[kSide], utility[kSide], r[kSide];
            for (int i = 0; i < kSide; i++) {
                int32_t label = labels[k + i < count ? k + i : k];
                z[i] = double(row[label]), a[i] = alpha[label], rate[i] = pi[label], utility[i] = phi ? phi[label] : 0.0;
                r[i] = ranks[k + i < count ? k + i : k];
            }
            cost_of(D::load(z), D::load(a), D::load(rate), D::load(utility), D::load(r)).store(z);
            for (int i = 0; i < kSide && k + i < count; i++) costs[k + i] = z[i];
        }
    }

    // r: how many labels lie strictly above in (alpha, lost, z).
    double rank_of(int32_t label) const {
        if (!job.rates) return double(count_above(row, row[label]));
        using W = Lanes<double, kLanes>;
        const W a(alpha[label]), l(lost[label]), z = double(row[label]);
        Lanes<int64_t, kLanes> above(0), tied(0);
        for (int64_t k = 0; k < n; k += kLanes) {
            W other = W::load(alpha + k);
            above = above - (other > a), tied = tied - (other == a);
        }
        if (count(tied) == 1) return double(count(above));
        above = Lanes<int64_t, kLanes>(0);
        for (int64_t k = 0; k < n; k += kLanes) {
            W other = W::load(alpha + k), error = W::load(lost + k);
            above = above - ((other > a) | ((other == a) & ((error > l) | ((error == l) & (widen(logits(k)) > z)))));
        }
        return double(count(above));
    }
    // Costs of a few labels, their ranks counted.
    void find_few(const int32_t *labels, int64_t count, double *costs) {
        alignas(64) double ranks[kOpen];
        for (int64_t k = 0; k < count; k++) ranks[k] = rank_of(labels[k]);
        find_costs(labels, count, ranks, costs);
    }

    // Costs of all labels, which are ordered by z, then stably by what rounding took, then by alpha.
    void find_all() {
        for (int64_t k = 0; k < n; k++) b.keys[k] = T(0) - row[k], b.found[k] = int32_t(k);
        sort_many(b.keys, b.found, b.sorted_keys, b.sorted, n);
        const double *keys[] = {lost, alpha};
        if (job.rates)
            for (const double *key : keys) {
                for (int64_t k = 0; k < n; k++) b.scores_to_sort[k] = 0.0 - key[b.sorted[k]], b.found[k] = b.sorted[k];
                sort_many(b.scores_to_sort, b.found, b.scores, b.sorted, n);
            }
        for (int64_t k = 0, shared = 0; k < n; k++) {
            int32_t label = b.sorted[k], before = k ? b.sorted[k - 1] : 0;
            bool is_tied = k && row[label] == row[before] && (!job.rates || (alpha[label] == alpha[before] && lost[label] == lost[before]));
            shared = is_tied ? shared : k;
            rank[label] = double(shared);
        }
        for (int64_t k = 0; k < n; k++) b.found[k] = int32_t(k);
        find_costs(b.found, n, rank, cost);
    }

    // What orders labels, or is one for those it does not: of two, the one above has no smaller key.
    INLINE F keys(int64_t k) const {
        if (job.rates) return narrow(Lanes<double, kLanes>::load(alpha + k));
        return narrow(logits(k));
    }
    // How many labels reach each of a few keys: no label that reaches one has a rank as high as that.
    void find_levels(float (&level)[kLevels], float (&reached)[kLevels]) const {
        const float low = float(s.low.first()), top = float(s.top.first());
        double least_alpha = alpha[0];
        for (int64_t k = 0; job.rates && k < n; k++) least_alpha = smaller(alpha[k], least_alpha);
        const double ratio = s.alpha.first() / least_alpha;
        for (int i = 0; i < kLevels; i++) {
            float part = float(i + 1) / float(kLevels + 1);
            level[i] = job.rates ? float(least_alpha * exp(log(D(ratio)) * double(part)).first()) : low + (top - low) * part;
        }
        Counts<float> counts[kLevels] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int64_t k = 0; k < n; k += kLanes) {
            F key = keys(k);
            for (int i = 0; i < kLevels; i++) count_if<float>(counts[i], key >= F(level[i]));
        }
        for (int i = 0; i < kLevels; i++) reached[i] = float(count(counts[i]));
    }

    // Bounds of all labels' costs, beyond what rounding in float32 can do.
    void find_bounds() {
        float level[kLevels], reached[kLevels];
        find_levels(level, reached);
        const float slack = float(kRounding), share = float(s.inverse_alpha_0.first()), scale = float(1.0 / p.stabilizer);
        const float one_rank = float(1.0 / p.K), total = float(s.largest.first());
        for (int64_t k = 0; k < n; k += kLanes) {
            using W = Lanes<double, kLanes>;
            Row16<T> z = logits(k);
            F q = narrow(W::load(alpha + k)) * share, I = log(q) * -1.0f, weight = narrow(W::load(pi + k));
            F utility = phi ? narrow(user_utility(k)) : exp(narrow((z - T(s.top.first())) * T(p.rate))) * total;
            F gain = utility * (q * q) * scale;
            Mask<float, kLanes> is_possible = narrow(z) > F(-kInfinity);
            F key = keys(k), highest(float(p.K) - 1.0f);  // the highest rank
            for (int i = 0; i < kLevels; i++) highest = select(key >= F(level[i]), F(reached[i] - 1.0f), highest);
            F scaling = (float(p.K) - highest) * one_rank;
            F low = weight * larger(I * (1.0f - slack) - 1e-6f, F(0.0f)) / (gain * (1.0f + slack) + (1.0f + slack));
            F high = weight * (I * (1.0f + slack) + 1e-6f) / (gain * (scaling * (1.0f - slack)) + (1.0f - slack));
            select(is_possible, low, F(kInfinity)).store(least + k);
            select(is_possible, high, F(-1.0f)).store(most + k);
        }
    }
    INLINE Lanes<double, kLanes> user_utility(int64_t k) const {
        if (k + kLanes <= n) return Lanes<double, kLanes>::load(phi + k);
        alignas(64) double each[kLanes];
        for (int i = 0; i < kLanes; i++) each[i] = k + i < n ? phi[k + i] : 0.0;
        return Lanes<double, kLanes>::load(each);
    }
    // Labels where a bound is on the right side of a limit, in their own order; gives how many.
    template <class Test> INLINE int64_t note(Test test) {
        int64_t count = 0;
        for (int64_t k = 0; k < n; k += kLanes) {
            uint32_t flags = bits(test(k));
            if (k + kLanes > n) flags &= kAllLanes >> (k + kLanes - n);
            if (flags) count = note_bits(open, count, k, flags);
        }
        return count;
    }

    // Of `count` open labels, one of which has the largest cost, keep those that may; gives how many. The ranks of a few, once
    // counted, bound all others'.
    int64_t close_in(int64_t count) {
        double *low = rank, *high = b.scores, *bound = b.scores_to_sort;  // of ranks, and what costs are then
        for (int64_t i = 0; i < count; i++) rank[i] = 0.0, high[i] = p.K - 1.0;
        for (int round = 0; round < kRounds && count > kSide; round++) {
            int32_t pivots[4] = {open[0], open[count / 3], open[2 * count / 3], open[count - 1]};
            for (int32_t pivot : pivots) {
                double r = rank_of(pivot);
                const double a = alpha[pivot];
                const T z = row[pivot];
                for (int64_t i = 0; i < count; i++) {
                    const double own = alpha[open[i]];
                    const T own_z = row[open[i]];
                    bool is_above = own > a || (!job.rates && own_z > z), is_below = own < a || (!job.rates && own_z < z);
                    if (open[i] == pivot) low[i] = high[i] = r;
                    high[i] = is_above && r < high[i] ? r : high[i];
                    low[i] = is_below && r > low[i] ? r : low[i];
                }
            }
            find_costs(open, count, low, bound);
            double least_worst = 0.0;
            for (int64_t i = 0; i < count; i++) least_worst = larger(bound[i], least_worst);
            find_costs(open, count, high, bound);
            int64_t kept = 0;
            for (int64_t i = 0; i < count; i++) {
                open[kept] = open[i], low[kept] = low[i], high[kept] = high[i];
                kept += bound[i] * (1.0 + 1e-12) >= least_worst;
            }
            count = kept;
        }
        return count;
    }

    // max_v C_v over the possible labels.
    void find_worst() {
        if (is_certain) return;
        alignas(64) double costs[kOpen];
        if (!is_dense) {
            find_bounds();
            // The label whose bound is highest is a good guess: its cost bounds the largest from below.
            F highest(-1.0f);
            for (int64_t k = 0; k < n; k += kLanes) highest = larger(F::load(most + k), highest);
            F guess(largest(highest));
            note([&](int64_t k) { return F::load(most + k) >= guess; });
            find_few(open, 1, costs);
            F limit(float(costs[0] * (1.0 - kRounding)));
            int64_t count = close_in(note([&](int64_t k) { return F::load(most + k) >= limit; }));
            is_dense = count > kOpen;
            if (!is_dense) {
                find_few(open, count, costs);
                worst = 0.0;
                for (int64_t i = 0; i < count; i++) worst = larger(costs[i], worst);
                return;
            }
        }
        find_all();
        worst = -double(kInfinity);
        for (int64_t k = 0; k < n; k++)
            if (row[k] > T(-kInfinity)) worst = larger(cost[k], worst);
    }

    // Eq. 11 of eight labels from their costs.
    D score_of(const D &costs, const D &z) const {
        D value(kLowest);
        if (!is_certain) value = smaller(p.is_plain ? log(costs * kMore / D(worst), 256.0) : costs - worst, D(0.0));
        return select(z == D(-kInfinity), D(kInfinity), larger(value, D(kLowest)));
    }
    // The scores of `count` labels, of which there are costs.
    void score(const int32_t *labels, int64_t count, const double *costs, double *scores) const {
        for (int64_t k = 0; k < count; k += kSide) {
            alignas(64) double z[kSide], own[kSide];
            for (int i = 0; i < kSide; i++) {
                int64_t at = k + i < count ? k + i : k;
                z[i] = double(row[labels[at]]), own[i] = costs[at];
            }
            score_of(D::load(own), D::load(z)).store(z);
            for (int i = 0; i < kSide && k + i < count; i++) scores[k + i] = z[i];
        }
    }
    // The scores of all labels.
    void score_all(double *scores) {
        if (!is_dense && !is_certain) find_all();
        for (int64_t k = 0; k < n; k++) b.found[k] = int32_t(k);
        score(b.found, n, cost, scores);
    }
    // The most plausible label: lowest score, then highest logit, then lowest index.
    int32_t best() {
        score_all(b.scores);
        int32_t label = 0;
        for (int32_t k = 1; k < int32_t(n); k++) {
            bool is_lower = b.scores[k] < b.scores[label], is_tied = b.scores[k] == b.scores[label];
            if (is_lower || (is_tied && row[k] > row[label])) label = k;
        }
        return label;
    }
    double score_label(int32_t label) {
        double own = 0.0, value;
        if (!is_certain && is_dense) own = cost[label];
        if (!is_certain && !is_dense) find_few(&label, 1, &own);
        score(&label, 1, &own, &value);
        return value;
    }

    // The labels within their limits, in `members` and `scores` of the batch; gives how many. `factors` are e^limit.
    int64_t find_set(const double *limits, bool by_label, const float *factors) {
        int64_t count = n;
        if (!is_dense && !is_certain) {
            const float largest_cost = float(worst * (1.0 + kRoughly));
            count = note([&](int64_t k) {
                return F::load(least + k) <= (by_label ? F::load(factors + k) : F(factors[0])) * largest_cost;
            });
            bool takes_impossible = false;  // bounds do not know them
            for (int64_t k = 0; k < (by_label ? n : 1); k++) takes_impossible |= limits[k] == double(kInfinity);
            if (count > kOpen || takes_impossible) count = n;
        }
        if (count == n || is_dense || is_certain) {
            score_all(b.scores);
            for (int64_t k = 0; k < n; k++) open[k] = int32_t(k);
        } else {
            alignas(64) double costs[kOpen];
            find_few(open, count, costs);
            score(open, count, costs, b.scores);
        }
        int64_t kept = 0;
        for (int64_t i = 0; i < count; i++) {
            b.found[kept] = open[i], b.keys[kept] = T(0) - row[open[i]], cost[kept] = b.scores[i];
            kept += b.scores[i] <= limits[by_label ? open[i] : 0];
        }
        if (kept == 0) return 0;
        for (int64_t i = 0; i < kept; i++) rank[b.found[i]] = cost[i];  // by label, while they are sorted by logit
        sort_candidates(b, kept);
        for (int64_t i = 0; i < kept; i++) b.members[i] = b.sorted[i], b.scores[i] = rank[b.sorted[i]];
        sort_set(b, kept);
        return kept;
    }
};

}  // namespace EVICP_LEVEL
}  // namespace evicp
