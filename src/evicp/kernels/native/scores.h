// A label's score: one formula for each kind, of eight labels side by side in float64.
//
// All entry points use these formulas and the same facts about rows, so that membership in a set and
// `score <= threshold` agree bit for bit. Symbols are the paper's: z logits, alpha the Dirichlet's parameters,
// p = alpha / alpha_0, I = -ln p the surprisal, phi = softmax(z / T) the utility, r the rank, C the cost.
#pragma once
#include "functions.h"
#include "job.h"

namespace evicp {
namespace EVICP_LEVEL {

constexpr int kSide = 8;
using D = Lanes<double, kSide>;

constexpr double kLargestLogit = 1e300, kLowest = -1.7976931348623157e308;
constexpr double kMore = 0x1p256;  // quotients of costs are multiplied by it: that of a logit of 1e300 would underflow

struct Parameters : Score {
    double K, rate;   // labels, and 1 / T
    double units;     // a weight of 1 as a whole number
    bool is_plain;    // ECP with a stabilizer such that costs can be divided by each other, without logarithms
    bool has_cuts;    // whether a threshold can be turned into a logit
    explicit Parameters(const Job &job) : Score(job.score) {
        K = double(job.n_classes), rate = 1.0 / temperature;
        units = double(1ull << (62 - (64 - __builtin_clzll(uint64_t(job.n_classes)))));
        is_plain = kind == kEcp && 1e-20 <= stabilizer && stabilizer <= 1.0;
        has_cuts = kind == kLac || (is_plain && evidence == kRelu);
    }
    bool needs_rank() const { return kind != kLac && kind != kMargin; }
    bool is_rank() const { return kind == kTopK || kind == kRank; }  // knows nothing of a row but its order
};

// What every label's score needs to know of its row, for N rows.
template <int N> struct Facts {
    alignas(64) double top[N], low[N], low_rank[N];  // the largest logit, the smallest finite one, how many are above it
    double exponentials[N];                // sum of e^((z - top) / T), one of the largest left out
    double largest[N], log_total[N];       // the largest probability, and ln of the whole sum
    double alpha[N], rest[N], inverse_alpha_0[N];  // the largest alpha, the sum of all others, 1 / alpha_0
    double v[N], second[N], mass[N];       // the randomisation, the second largest probability, the sum of weights
    double worst[N];                       // the largest log cost, which is that of the lowest possible label
    double low_surprisal[N], low_gain[N];  // of that label, where costs are plain
    double ceiling[N];                     // no score is above: 0, and the lowest number where one label is possible
};
struct Row {
    D top, low, largest, log_total, alpha, rest, inverse_alpha_0, v, second, mass, worst, low_surprisal, low_gain, ceiling;
};
// Eight rows from number j on, and row j eight times.
#define EACH_FACT(OF)                                                                                           \
    {OF(top), OF(low), OF(largest), OF(log_total), OF(alpha), OF(rest), OF(inverse_alpha_0), OF(v), OF(second), \
     OF(mass), OF(worst), OF(low_surprisal), OF(low_gain), OF(ceiling)}
template <int N> INLINE Row rows_at(const Facts<N> &f, int j) {
#define FROM_J(NAME) D::load(f.NAME + j)
    return EACH_FACT(FROM_J);
}
template <int N> INLINE Row row_at(const Facts<N> &f, int j) {
#define AT_J(NAME) D(f.NAME[j])
    return EACH_FACT(AT_J);
}

// What a score needs to know of N labels.
template <int N> struct Labels {
    alignas(64) double z[N], rank[N];  // rank: how many labels have a strictly larger logit
    double reach[N], own[N];           // the weight of those and its own, and its own weight
    double score[N];
};
struct Label { D z, rank, reach, own; };
template <int N> INLINE Label labels_at(const Labels<N> &l, int j) {
    return {D::load(l.z + j), D::load(l.rank + j), D::load(l.reach + j), D::load(l.own + j)};
}

// Definition 1: e = A(z).
template <class T, int N> INLINE Lanes<T, N> activate(int32_t evidence, const Lanes<T, N> &z) {
    if (evidence == kRelu) return larger(Lanes<T, N>(T(0)), z);  // keeps a NaN
    if (evidence == kSoftplus) return softplus(z);
    Lanes<T, N> e = exp(smaller(larger(z, Lanes<T, N>(T(-10))), Lanes<T, N>(T(10))));
    return select(z > Lanes<T, N>(T(-kInfinity)), e, Lanes<T, N>(T(0)));
}
// Eq. 1 with uniform base rates: alpha = e + 1.
INLINE D dirichlet(int32_t evidence, const D &z) { return activate(evidence, z) + 1.0; }

// (z - top) / T; a quotient past the largest double is clipped, as in the reference.
INLINE D shifted(const Parameters &p, const Row &s, const D &z) { return larger((z - s.top) * p.rate, D(-1e308)); }
INLINE D probability(const Parameters &p, const Row &s, const D &z) { return exp(shifted(p, s, z)) * s.largest; }

// Eq. 6: I = -ln(alpha / alpha_0); of a label that holds more than half, from what the others hold.
INLINE D surprisal(const Row &s, const D &alpha) {
    Mask<double, kSide> most = (alpha == s.alpha) & (s.rest < s.alpha);
    D ratio = s.rest / s.alpha, u = ratio + 1.0;
    D logarithm = log(select(most, u, alpha * s.inverse_alpha_0));
    return select(most, logarithm + (ratio - (u - 1.0)), logarithm * -1.0);
}

// The denominator of Eq. 10 up to a row constant, phi p^2 (1 - r/K) + stabilizer, in units of the latter.
INLINE D gain(const Parameters &p, const Row &s, const D &z, const D &alpha, const D &rank) {
    D share = alpha * s.inverse_alpha_0, scaling = (p.K - rank) * (1.0 / p.K);
    return probability(p, s, z) * (share * share * scaling) * (1.0 / p.stabilizer) + 1.0;
}

// Eq. 10 up to a row constant: ln I - ln(phi p^2 (1 - r/K) + stabilizer).
INLINE D log_cost(const Parameters &p, const Row &s, const D &z, const D &alpha, const D &rank) {
    D I = surprisal(s, alpha), scaling = (p.K - rank) * (1.0 / p.K);
    if (p.stabilizer == 0.0) {
        // The utility relative to the lowest label's, whose cost is subtracted next: a spike must not swallow the rest.
        D utility = smaller((z - s.low) * p.rate, D(1e308));
        return log(I) + 2.0 * I - log(scaling) - utility;
    }
    D log_denominator = shifted(p, s, z) - s.log_total - 2.0 * I + log(scaling);
    return log(I) - log_add_exp(log_denominator, D(p.log_stabilizer));
}

// Eq. 11: ln S, a label's cost relative to the row's largest.
INLINE D ecp(const Parameters &p, const Row &s, const Label &l) {
    D alpha = dirichlet(p.evidence, l.z);
    if (!p.is_plain) return smaller(log_cost(p, s, l.z, alpha, l.rank) - s.worst, s.ceiling);
    D I = surprisal(s, alpha), value = log(I * kMore * s.low_gain / (gain(p, s, l.z, alpha, l.rank) * s.low_surprisal), 256.0);
    return smaller(value, s.ceiling);
}

// -ln of the label's probability.
INLINE D lac(const Parameters &p, const Row &s, const Label &l) { return s.log_total - shifted(p, s, l.z); }

// APS and RAPS: the probability of all labels above and v times its own, as ratios of whole numbers, and a penalty.
INLINE D mass(const Parameters &p, const Row &s, const Label &l) {
    D excess = larger(l.rank + 1.0 - p.k_reg, D(0.0));
    if (p.randomize_penalty) excess = select(excess > D(0.0), excess - 1.0 + s.v, excess);
    return l.reach / s.mass - (1.0 - s.v) * (l.own / s.mass) + p.lam * excess;
}

INLINE D saps(const Parameters &p, const Row &s, const Label &l) {
    return select(l.rank == D(0.0), s.v * s.largest, s.largest + (l.rank - 1.0 + s.v) * p.lam);
}

INLINE D margin(const Parameters &p, const Row &s, const Label &l) {
    return select(l.z == s.top, s.second, s.largest) - probability(p, s, l.z);
}

INLINE D score(const Parameters &p, const Row &s, const Label &l) {
    D value;
    switch (p.kind) {
        case kEcp: value = ecp(p, s, l); break;
        case kLac: value = lac(p, s, l); break;
        case kMass: value = mass(p, s, l); break;
        case kSaps: value = saps(p, s, l); break;
        case kTopK: value = l.rank + s.v; break;
        case kMargin: value = margin(p, s, l); break;
        default: return l.rank + 1.0;
    }
    return select(l.z == D(-kInfinity), D(kInfinity), value);
}

// The scores of `count` labels of as many rows, and of eight labels of row j.
template <int N> NEVER_INLINE void score_labels(const Parameters &p, const Facts<N> &f, Labels<N> &l, int count) {
    for (int j = 0; j < count; j += kSide) score(p, rows_at(f, j), labels_at(l, j)).store(l.score + j);
}
template <int N> NEVER_INLINE void score_eight(const Parameters &p, const Facts<N> &f, int j, Labels<N> &l) {
    score(p, row_at(f, j), labels_at(l, 0)).store(l.score);
}

// The rest of what labels' scores need to know of `count` rows, given what passes over them found.
template <int N> NEVER_INLINE void finish_rows(const Parameters &p, Facts<N> &f, int count) {
    if (p.is_rank() || p.kind == kMass) return;
    for (int j = 0; j < count; j += kSide) {
        D others = D::load(f.exponentials + j);
        (1.0 / (1.0 + others)).store(f.largest + j);
        if (!p.is_plain) log1p(others).store(f.log_total + j);
        if (p.kind == kMargin) probability(p, rows_at(f, j), D::load(f.second + j)).store(f.second + j);
        if (p.kind != kEcp) continue;
        D top = D::load(f.top + j), low = D::load(f.low + j), rank = D::load(f.low_rank + j);
        D alpha = dirichlet(p.evidence, top), low_alpha = dirichlet(p.evidence, low);
        alpha.store(f.alpha + j);
        (1.0 / (alpha + D::load(f.rest + j))).store(f.inverse_alpha_0 + j);
        if (p.is_plain) {
            surprisal(rows_at(f, j), low_alpha).store(f.low_surprisal + j);
            gain(p, rows_at(f, j), low, low_alpha, rank).store(f.low_gain + j);
        } else {
            log_cost(p, rows_at(f, j), low, low_alpha, rank).store(f.worst + j);
        }
    }
}

}  // namespace EVICP_LEVEL
}  // namespace evicp
