// ECP with base rates or a utility of the user's own: scores need not fall as the logit rises.
//
// The largest cost and the labels within a threshold can be anywhere. All labels' costs are bounded in float32, for the
// highest and the lowest rank; the few that the bounds leave open get their ranks counted and their costs computed. Where
// they are many, in narrow rows, and with numbers beyond float32, all labels' costs are computed instead. A label's score
// is the same bits either way.
#pragma once
#include "label_limits.h"

namespace evicp {
namespace EVICP_LEVEL {

constexpr int64_t kOpen = 256;      // more labels than this do not have their ranks counted one by one
constexpr int64_t kFewOpen = 24;    // few enough to look at all of them for the largest cost
constexpr int64_t kCounted = 256;   // in rows of more labels than this ranks are found by sorting
constexpr int64_t kAllAtOnce = 32;  // in rows of at most so many labels all costs are computed
constexpr float kRounding = 2e-5f;  // more than rounding in float32 does to a quotient of costs
constexpr float kLogRounding = 1e-6f;  // and to a logarithm near 0
constexpr float kLargestGain = 1e30f;  // larger ones would take bounds out of float32's range

template <class T> struct Uneven {
    const Job &job;
    const Parameters p;
    const int64_t n;          // labels
    double *prior, *pi;       // K pi and pi; 1 where base rates are uniform
    double *alpha;            // e + K pi, with base rates
    double *cost, *rank;      // of all labels, where they are needed
    float *key, *weight;      // alpha and pi in float32
    float *numerator, *gain, *scaling;  // a label's cost is at most numerator / (gain scaling + 1), but for rounding
    int32_t *open;            // labels that bounds leave open
    float largest_pi;
    void *memory;

    // What is known of the row at hand.
    Batch<T> *b = nullptr;
    Logits<T> row{};
    const double *phi = nullptr;
    Row s{};
    double worst = 0.0;       // the largest cost; its logarithm, where costs are not plain
    bool is_certain = false;  // whether only one label is possible
    bool is_dense = false;    // whether all labels' costs are known

    explicit Uneven(const Job &job) : job(job), p(job), n(job.n_classes) {
        int64_t room = (n + 2 * kLanes + 15) / 16 * 16;
        memory = aligned_alloc(64, size_t(room * (5 * 8 + 6 * 4)));
        if (memory == nullptr) return;
        double *wide = static_cast<double *>(memory), **doubles[] = {&prior, &pi, &alpha, &cost, &rank};
        for (double **each : doubles) *each = wide, wide += room;
        float *single = reinterpret_cast<float *>(wide), **singles[] = {&key, &weight, &numerator, &gain, &scaling};
        for (float **each : singles) *each = single, single += room;
        open = reinterpret_cast<int32_t *>(single);
        largest_pi = 0.0f;
        for (int64_t k = 0; k < room; k++) {
            pi[k] = k < n ? (job.rates ? job.rates[k] : 1.0) : 0.0;
            prior[k] = k < n ? (job.rates ? double(n) * job.rates[k] : 1.0) : 0.0;
            weight[k] = float(pi[k]), largest_pi = larger(weight[k], largest_pi);
        }
    }
    ~Uneven() { free(memory); }
    Uneven(const Uneven &) = delete;
    Uneven &operator=(const Uneven &) = delete;

    // 16 numbers from number k on, `last` beyond the end.
    template <class X> INLINE Lanes<X, kLanes> sixteen(const X *from, int64_t k, int64_t end, X last) const {
        if (__builtin_expect(k + kLanes <= end, 1)) return Lanes<X, kLanes>::load(from + k);
        alignas(64) X each[kLanes];
        for (int i = 0; i < kLanes; i++) each[i] = k + i < end ? from[k + i] : last;
        return Lanes<X, kLanes>::load(each);
    }
    INLINE Row16<T> logits(int64_t k) const { return sixteen(row.z, k, row.n, T(-kInfinity)); }
    // What orders labels, or is the same for those it does not: of two, the one above has no smaller key.
    INLINE F keys(int64_t k) const { return job.rates ? F::load(key + k) : narrow(logits(k)); }

    // Take row i of a batch; false where it cannot be used.
    bool take(Batch<T> &batch, int64_t i) {
        b = &batch;
        row = b->row(i);
        phi = job.utility ? job.utility + i * job.utility_stride : nullptr;
        Survey<T> found = survey<false>(row, T(0));
        if (!found.usable) return false;
        is_certain = found.top == found.low && count_above(row, T(-kInfinity)) == 1;
        s.top = D(double(found.top)), s.low = D(double(found.low));
        if (!phi) {
            Sums sum = sums<false>(row, found.top, T(p.rate), found.low);
            s.largest = D(1.0 / (1.0 + sum.exponentials)), s.log_total = log1p(D(sum.exponentials));
        }
        if (job.rates) {
            add_alphas();
        } else {
            s.alpha = dirichlet(p.evidence, s.top), s.rest = D(evidence_but_largest(row, p.evidence, found) + (p.K - 1.0));
        }
        s.inverse_alpha_0 = 1.0 / (s.alpha + s.rest);
        bool is_huge = double(found.top) > kLargestAlpha0 || double(found.low) < -kLargestAlpha0;
        is_dense = n <= kAllAtOnce || !p.is_plain || is_huge || s.inverse_alpha_0.first() * kLargestAlpha0 < 1.0;
        if (!is_certain) find_worst();
        return true;
    }
    // Eq. 1: alpha of all labels, the largest, and the sum of the others.
    void add_alphas() {
        using W = Lanes<double, kLanes>;
        W tops(0.0), rest(0.0);
        for (int64_t k = 0; k < n; k += kLanes) {
            W a = widen(activate(p.evidence, logits(k))) + W::load(prior + k);
            a.store(alpha + k), narrow(a).store(key + k);
            rest = rest + smaller(tops, a), tops = larger(a, tops);
        }
        alignas(64) double each[kLanes], others[kLanes];
        tops.store(each), rest.store(others);
        double top = 0.0, total = 0.0;
        for (int k = 0; k < kLanes; k++) total += others[k] + smaller(top, each[k]), top = larger(each[k], top);
        s.alpha = D(top), s.rest = D(total);
    }

    // pi I / (phi p^2 (1 - r/K) + stabilizer) of eight labels, in units of 1 / stabilizer, or its logarithm. Plain costs
    // rise with the rank, also as they are rounded.
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
                int64_t at = k + i < count ? k + i : k;
                int32_t label = labels[at];
                z[i] = double(row[label]), a[i] = job.rates ? alpha[label] : 1.0, rate[i] = pi[label], r[i] = ranks[at];
                utility[i] = phi ? phi[label] : 0.0;
            }
            D own_alpha = job.rates ? D::load(a) : dirichlet(p.evidence, D::load(z));
            cost_of(D::load(z), own_alpha, D::load(rate), D::load(utility), D::load(r)).store(z);
            for (int i = 0; i < kSide && k + i < count; i++) costs[k + i] = z[i];
        }
    }

    // What rounding took from e + K pi (Knuth's two-sum).
    INLINE Lanes<double, kLanes> lost(int64_t k) const {
        using W = Lanes<double, kLanes>;
        W e = widen(activate(p.evidence, logits(k))), own = W::load(prior + k), a = e + own, share = a - e;
        return (e - (a - share)) + (own - share);
    }
    // r with base rates: how many labels lie strictly above in (alpha, lost, z).
    NEVER_INLINE double exact_rank(int32_t label) const {
        using W = Lanes<double, kLanes>;
        alignas(64) double each[kLanes];
        lost(label / kLanes * kLanes).store(each);
        const W a(alpha[label]), l(each[label % kLanes]), z = double(row[label]);
        Lanes<int64_t, kLanes> above(0);
        for (int64_t k = 0; k < n; k += kLanes) {
            W other = W::load(alpha + k), error = lost(k);
            above = above - ((other > a) | ((other == a) & ((error > l) | ((error == l) & (widen(logits(k)) > z)))));
        }
        return double(count(above));
    }
    // r of `count` labels, counted for four at a time.
    void find_ranks(const int32_t *labels, int64_t count, double *ranks) const {
        int64_t k = 0;
        for (; k + 4 <= count; k += 4) count_above_labels<4>(labels + k, ranks + k);
        for (; k < count; k++) count_above_labels<1>(labels + k, ranks + k);
    }
    template <int N> void count_above_labels(const int32_t *labels, double *ranks) const {
        if (!job.rates) {
            T z[N];
            for (int i = 0; i < N; i++) z[i] = row[labels[i]];
            return count_above<N>(row, z, ranks);
        }
        Lanes<int32_t, kLanes> above[N], no_lower[N];
        for (int i = 0; i < N; i++) above[i] = no_lower[i] = Lanes<int32_t, kLanes>(0);
        for (int64_t k = 0; k < n; k += kLanes) {
            F others = F::load(key + k);
            _Pragma("GCC unroll 4") for (int i = 0; i < N; i++) {
                F own(key[labels[i]]);
                above[i] = above[i] - (others > own), no_lower[i] = no_lower[i] - (others >= own);
            }
        }
        for (int i = 0; i < N; i++) {
            ranks[i] = double(count(above[i]));
            if (count(no_lower[i]) > count(above[i]) + 1) ranks[i] = exact_rank(labels[i]);
        }
    }
    // Costs of a few labels, their ranks counted.
    void find_few(const int32_t *labels, int64_t count, double *costs) {
        alignas(64) double ranks[kOpen];
        find_ranks(labels, count, ranks);
        find_costs(labels, count, ranks, costs);
    }

    // Costs of all labels. Many are ordered by z, then stably by what rounding took, then by alpha.
    void find_all() {
        for (int64_t k = 0; k < n; k++) b->found[k] = int32_t(k);
        if (n <= kCounted) {
            find_ranks(b->found, n, rank);
            return find_costs(b->found, n, rank, cost);
        }
        for (int64_t k = 0; k < n; k++) b->keys[k] = T(0) - row[k];
        sort_many(b->keys, b->found, b->sorted_keys, b->sorted, n);
        double *errors = cost;  // until there are costs
        const double *keys[] = {errors, alpha};
        for (int64_t k = 0; job.rates && k < n; k += kLanes) lost(k).store(errors + k);
        for (int i = 0; job.rates && i < 2; i++) {
            for (int64_t k = 0; k < n; k++) b->scores_to_sort[k] = 0.0 - keys[i][b->sorted[k]], b->found[k] = b->sorted[k];
            sort_many(b->scores_to_sort, b->found, b->scores, b->sorted, n);
        }
        for (int64_t k = 0, shared = 0; k < n; k++) {
            int32_t label = b->sorted[k], before = k ? b->sorted[k - 1] : 0;
            bool is_tied = k && row[label] == row[before] && (!job.rates || (alpha[label] == alpha[before] && errors[label] == errors[before]));
            shared = is_tied ? shared : k;
            rank[label] = double(shared);
        }
        for (int64_t k = 0; k < n; k++) b->found[k] = int32_t(k);
        find_costs(b->found, n, rank, cost);
    }

    // Bound the costs of all labels; gives the one with the highest bound, as far as can be told.
    int32_t find_bounds() {
        const float share = float(s.inverse_alpha_0.first()), scale = float(1.0 / p.stabilizer), total = phi ? 0.0f : float(s.largest.first());
        F low(kInfinity);
        for (int64_t k = 0; k + kLanes <= n; k += kLanes) low = smaller(keys(k), low);
        const auto eight = smaller(lower(low), upper(low));
        const F lowest_4(largest(smaller(lower(eight), upper(eight)))), lowest_8(largest(eight)), lowest_16(largest(low));
        const float one = float(1.0 / p.K);
        F best(-1.0f), divisor(1.0f), largest_gain(0.0f);
        Lanes<int32_t, kLanes> at(0);
        for (int64_t k = 0; k < n; k += kLanes) {
            Row16<T> z = logits(k);
            F own = keys(k), q = (job.rates ? own : narrow(activate(p.evidence, z)) + 1.0f) * share;
            F utility = phi ? narrow(sixteen(phi, k, n, 0.0)) : exp(narrow((z - T(s.top.first())) * T(p.rate))) * total;
            F above = F::load(weight + k) * (log(q) * -1.0f + kLogRounding), g = (utility * q) * (q * scale);
            above = select(narrow(z) > F(-kInfinity), above, F(__builtin_nanf("")));  // impossible: within no bound
            F least = select(own > lowest_16, F(17.0f * one), select(own > lowest_8, F(9.0f * one), select(own > lowest_4, F(5.0f * one), F(one))));
            above.store(numerator + k), g.store(gain + k), least.store(scaling + k), largest_gain = larger(g, largest_gain);
            F below = g * least + 1.0f;
            Mask<float, kLanes> is_higher = above * divisor > best * below;
            best = select(is_higher, above, best), divisor = select(is_higher, below, divisor);
            at = select(is_higher, Lanes<int32_t, kLanes>(int32_t(k)), at);
        }
        is_dense = largest(largest_gain) > kLargestGain;
        alignas(64) float each[kLanes];
        alignas(64) int32_t from[kLanes];
        (best / divisor).store(each), at.store(from);
        int lane = 0;
        for (int i = 1; i < kLanes; i++) lane = each[i] > each[lane] ? i : lane;
        return from[lane] + lane;
    }
    // Labels for which a test holds, in their own order; gives how many.
    template <class Test> INLINE int64_t note(Test test) {
        int64_t count = 0;
        for (int64_t k = 0; k < n; k += kLanes) {
            uint32_t flags = bits(test(k));
            if (k + kLanes > n) flags &= kAllLanes >> (k + kLanes - n);
            if (flags) count = note_bits(open, count, k, flags);
        }
        return count;
    }

    INLINE Mask<float, kLanes> may_be_worst(int64_t k, const F &limit) const {
        return F::load(numerator + k) >= limit * (F::load(gain + k) * F::load(scaling + k) + 1.0f);
    }
    // max_v C_v over the possible labels.
    void find_worst() {
        if (!is_dense) {
            int32_t guess = find_bounds();
            find_few(&guess, 1, &worst);
            F limit(float(worst) * (1.0f - kRounding));
            int64_t count = note([&](int64_t k) { return may_be_worst(k, limit); });
            for (int64_t before = 2 * count; count > kFewOpen && count < before * 3 / 4;) before = count, count = close_in(count);
            is_dense |= count > kOpen;
            if (!is_dense) {
                alignas(64) double costs[kOpen];
                find_few(open, count, costs);
                for (int64_t i = 0; i < count; i++) worst = larger(costs[i], worst);
                return;
            }
        }
        find_all();
        worst = -double(kInfinity);
        for (int64_t k = 0; k < n; k++)
            if (row[k] > T(-kInfinity)) worst = larger(cost[k], worst);
    }
    // Compute the costs of eight of the open labels, whose ranks bound those of the labels above them; gives how many stay open.
    int64_t close_in(int64_t count) {
        int32_t pivots[kSide];
        alignas(64) double ranks[kSide], costs[kSide];
        for (int i = 0; i < kSide; i++) pivots[i] = open[i * (count - 1) / (kSide - 1)];
        find_ranks(pivots, kSide, ranks);
        find_costs(pivots, kSide, ranks, costs);
        F pivot[kSide], least[kSide];
        for (int i = 0; i < kSide; i++) {
            worst = larger(costs[i], worst);
            pivot[i] = F(job.rates ? key[pivots[i]] : float(row[pivots[i]])), least[i] = F(float((p.K + 1.0 - ranks[i]) / p.K));
        }
        F limit(float(worst) * (1.0f - kRounding));
        return note([&](int64_t k) {
            F own = keys(k), known = F::load(scaling + k);
            _Pragma("GCC unroll 8") for (int i = 0; i < kSide; i++) known = larger(select(own > pivot[i], least[i], known), known);
            known.store(scaling + k);
            return may_be_worst(k, limit);
        });
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
        for (int64_t k = 0; k < n; k++) b->found[k] = int32_t(k);
        score(b->found, n, cost, scores);
    }
    // The most plausible label: lowest score, then highest logit, then lowest index.
    int32_t best() {
        score_all(b->scores);
        int32_t label = 0;
        for (int32_t k = 1; k < int32_t(n); k++) {
            bool is_lower = b->scores[k] < b->scores[label], is_tied = b->scores[k] == b->scores[label];
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
            const float largest_cost = float(worst) * (1.0f + float(kRoughly)), rounding = 2.0f * kLogRounding * largest_pi;
            count = note([&](int64_t k) {
                F limit = (by_label ? F::load(factors + k) : F(factors[0])) * largest_cost;
                return F::load(numerator + k) - rounding <= limit * (F::load(gain + k) + 1.0f);
            });
            bool takes_impossible = false;  // bounds do not know them
            for (int64_t k = 0; k < (by_label ? n : 1); k++) takes_impossible |= limits[k] == double(kInfinity);
            if (count > kOpen || takes_impossible) count = n;
        }
        if (count == n || is_dense || is_certain) {
            score_all(b->scores);
            for (int64_t k = 0; k < n; k++) open[k] = int32_t(k);
        } else {
            alignas(64) double costs[kOpen];
            find_few(open, count, costs);
            score(open, count, costs, b->scores);
        }
        int64_t kept = 0;
        for (int64_t i = 0; i < count; i++) {
            b->found[kept] = open[i], b->keys[kept] = T(0) - row[open[i]], cost[kept] = b->scores[i];
            kept += b->scores[i] <= limits[by_label ? open[i] : 0];
        }
        if (kept == 0) return 0;
        for (int64_t i = 0; i < kept; i++) rank[b->found[i]] = cost[i];  // by label, while they are sorted by logit
        sort_candidates(*b, kept);
        for (int64_t i = 0; i < kept; i++) b->members[i] = b->sorted[i], b->scores[i] = rank[b->sorted[i]];
        sort_set(*b, kept);
        return kept;
    }
};

}  // namespace EVICP_LEVEL
}  // namespace evicp
