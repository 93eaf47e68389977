// What passes over rows find.
//
// Lanes hold 16 logits of one row, or, of narrow rows and the usual scores, one logit of each of 16 rows. Where a row
// does not end with whole lanes its last 16 logits are read, with -inf for those that were read before.
#pragma once
#include "scores.h"

namespace evicp {
namespace EVICP_LEVEL {

constexpr int64_t kChunk = 256 * kLanes;  // float32 lanes are added up in float64 after this many: long rows stay accurate
constexpr int64_t kAhead = 1024;          // logits that are fetched ahead of the first pass
constexpr int kBatch = 32;                // rows whose formulas are worked out side by side, fewer if they are long
constexpr int64_t kBatchLogits = 1 << 15;
constexpr int kNarrow = 256;              // rows of at most so many labels are turned on their side

template <class T> using Row16 = Lanes<T, kLanes>;
template <class T> using Counts = Lanes<Whole<T>, kLanes>;

// A row of at least 16 logits.
template <class T> struct Logits {
    const T *z;
    int64_t n;
    INLINE T operator[](int64_t k) const { return z[k]; }
    // 16 logits from number i on; at the end the last ones, in the upper lanes.
    INLINE Row16<T> load(int64_t i) const {
        if (__builtin_expect(i + kLanes <= n, 1)) return Row16<T>::load(z + i);
        if (i >= n) return Row16<T>(T(-kInfinity));
        Lanes<Whole<T>, kLanes> seen(Whole<T>(i + kLanes - n));
        return select(numbers<Whole<T>>() < seen, Row16<T>(T(-kInfinity)), Row16<T>::load(z + n - kLanes));
    }
    INLINE int64_t place(int64_t i) const { return i < n - kLanes ? i : n - kLanes; }  // of the first that `load` gives
};

// Count where x > y; gives where that is.
template <class T> INLINE Mask<T, kLanes> count_greater(Counts<T> &counts, const Row16<T> &x, const Row16<T> &y) {
    Mask<T, kLanes> mask = x > y;
    counts = counts - mask;
    return mask;
}

template <class T> INLINE Row16<T> finite_or(const Row16<T> &z, T other) {
    return select(z > Row16<T>(T(-kInfinity)), z, Row16<T>(other));
}

template <class T> T smallest_finite(const Logits<T> &row) {
    Row16<T> low{T(kInfinity)};
    for (int64_t i = 0; i < row.n; i += kLanes) low = smaller(finite_or(row.load(i), T(kInfinity)), low);
    return smallest(low);
}

// How many logits are strictly larger than each of N, in one pass.
template <int N, class T> void count_above(const Logits<T> &row, const T *z, double *ranks) {
    Counts<T> above[N] = {};
    for (int64_t i = 0; i < row.n; i += kLanes) {
        Row16<T> others = row.load(i);
        _Pragma("GCC unroll 4") for (int k = 0; k < N; k++) count_greater(above[k], others, Row16<T>(z[k]));
    }
    for (int k = 0; k < N; k++) ranks[k] = double(count(above[k]));
}
template <class T> int64_t count_above(const Logits<T> &row, T z) {
    double rank;
    count_above<1>(row, &z, &rank);
    return int64_t(rank);
}

// The sum of what is positive in lanes, but for the largest.
template <class T> INLINE double but_largest(const Row16<T> &tops) {
    auto lesser = [](auto low, auto high) __attribute__((always_inline)) {
        return widen(larger(smaller(low, high), decltype(low)(T(0))));
    };
    auto a = lower(tops), b = upper(tops);  // 8 lanes each
    auto c = larger(a, b);
    auto d = larger(lower(c), upper(c));
    auto e = larger(lower(d), upper(d));
    auto eights = lesser(a, b);
    auto fours = lesser(lower(c), upper(c)) + (lower(eights) + upper(eights));
    auto twos = lesser(lower(d), upper(d)) + (lower(fours) + upper(fours));
    T x = e.part[0][0], y = e.part[0][1];
    double last = double(larger(smaller(x, y), T(0)));
    return last + (twos.part[0][0] + twos.part[0][1]);
}

// From the largest logit of each lane: one that at least LABELS labels reach, and not many more.
template <int LABELS, class T, int N> INLINE T level_of(const Lanes<T, N> &top) {
    if constexpr (N == LABELS) {
        return smallest(top);
    } else {
        return level_of<LABELS>(larger(lower(top), upper(top)));
    }
}

// What a first look at a row tells.
template <class T> struct Survey {
    bool usable;        // no NaN, no +inf, something finite, nothing too large
    T top, low;         // the largest logit, and the smallest finite one
    double rest;        // the sum of relu evidence, one of the largest left out
    int64_t rank;       // how many labels are above the label, if there is one
    T few, some, many;  // logits that 4, 8 and 16 labels reach, and about 8, 20 and 50 on average
};

template <bool RANKED, class T> INLINE void look(const Row16<T> &z, Row16<T> &rest, Row16<T> &top, Counts<T> &rank, const Row16<T> &mark) {
    rest = rest + larger(Row16<T>(T(0)), smaller(top, z));  // keeps a NaN, which is no largest
    if (RANKED) count_greater(rank, z, mark);
    top = larger(z, top);
}

// A first look at a row, and how many labels are above one if RANKED. `read` gives 16 logits from a number on; where it
// widens them, it also puts them into the row.
template <bool RANKED, class T, class Read> INLINE Survey<T> survey(const Logits<T> &row, T label, Read read) {
    Row16<T> mark(label), top{T(-kInfinity)}, low = read(row.n - kLanes);
    Counts<T> rank(0);
    double rest = 0.0;
    int64_t whole = row.n / kLanes * kLanes;
    for (int64_t start = 0; start < row.n; start += kChunk) {
        Row16<T> part(T(0));
        int64_t stop = smaller(start + kChunk, whole);
        for (int64_t i = start; i < stop; i += kLanes) {
            Row16<T> z = read(i);
            look<RANKED>(z, part, top, rank, mark);
            low = smaller(z, low);
        }
        if (whole < smaller(start + kChunk, row.n)) look<RANKED>(row.load(whole), part, top, rank, mark);
        rest += sum(part);
    }
    Survey<T> s;
    s.top = largest(top), s.low = smallest(low);
    if (s.low == T(-kInfinity)) s.low = smallest_finite(row);
    s.rest = rest + but_largest(top);
    s.usable = T(-kInfinity) < s.top && double(s.top) <= kLargestLogit && s.rest == s.rest;
    s.rank = count(rank);
    s.few = larger(level_of<4>(top), s.low), s.some = larger(level_of<8>(top), s.low), s.many = larger(level_of<16>(top), s.low);
    return s;
}
template <bool RANKED, class T> INLINE Survey<T> survey(const Logits<T> &row, T label) {
    return survey<RANKED>(row, label, [&row](int64_t i) __attribute__((always_inline)) {
        __builtin_prefetch(row.z + i + kAhead);
        return Row16<T>::load(row.z + i);
    });
}

// What the second pass over a row gives.
struct Sums {
    int64_t shared;       // how many labels have the largest logit
    double exponentials;  // the sum of e^((z - top) rate), one of the largest left out, which would swallow digits
    int64_t low_rank;     // how many labels are above `low`
};
template <bool HAS_LOW, class T> INLINE Sums sums(const Logits<T> &row, T top, T rate, T low) {
    Counts<T> below(0), low_rank(0);
    double exponentials = 0.0;
    for (int64_t start = 0; start < row.n; start += kChunk) {
        Row16<T> e(T(0));
        auto add = [&](const Row16<T> &z) __attribute__((always_inline)) {
            e = e + select(count_greater(below, Row16<T>(top), z), exp_times(z - top, rate), Row16<T>(T(0)));
            if (HAS_LOW) count_greater(low_rank, z, Row16<T>(low));
        };
        int64_t stop = smaller(start + kChunk, row.n), i = start;
        for (; i + kLanes <= stop; i += kLanes) add(Row16<T>::load(row.z + i));
        if (i < stop) add(row.load(i));
        exponentials += sum(e);
    }
    int64_t tops = (row.n + kLanes - 1) / kLanes * kLanes - count(below);
    return {tops, exponentials + (double(tops) - 1.0), count(low_rank)};
}

// The sum of a row's evidence, one of the largest left out, where single precision would overflow; there relu and
// softplus are one.
template <class T> double huge_evidence_but_largest(const Logits<T> &row) {
    double top = 0.0, rest = 0.0;
    for (int64_t k = 0; k < row.n; k++) {
        rest += larger(smaller(double(row[k]), top), 0.0);
        top = larger(double(row[k]), top);
    }
    return rest;
}
// The sum of a row's evidence of any kind, one of the largest left out.
template <int EVIDENCE, class T> double other_evidence(const Logits<T> &row, T top) {
    int64_t shared = 0;
    double rest = 0.0;
    for (int64_t start = 0; start < row.n; start += kChunk) {
        Row16<T> part(T(0));
        for (int64_t i = start; i < smaller(start + kChunk, row.n); i += kLanes) {
            Row16<T> z = row.load(i);
            Mask<T, kLanes> is_top = z >= Row16<T>(top);
            shared += __builtin_popcount(bits(is_top));
            part = part + select(is_top, Row16<T>(T(0)), activate(EVIDENCE, z));
        }
        rest += sum(part);
    }
    rest += (double(shared) - 1.0) * activate(EVIDENCE, D(double(top))).first();
    return rest == double(kInfinity) ? huge_evidence_but_largest(row) : rest;
}
template <class T> double evidence_but_largest(const Logits<T> &row, int32_t evidence, const Survey<T> &s) {
    if (evidence == kRelu) return s.rest < double(kInfinity) ? s.rest : huge_evidence_but_largest(row);
    return evidence == kSoftplus ? other_evidence<kSoftplus>(row, s.top) : other_evidence<kExp>(row, s.top);
}

// v in [0, 1): a pure function of the seed and of the logits in any order.
template <class T> double uniform(const Logits<T> &row, uint32_t seed) {
    Lanes<uint32_t, kLanes> total(0);
    for (int64_t i = 0; i < row.n; i += kLanes) total = total + hashes(row.load(i));
    return double(mix32(uint32_t(fold(total, Plus())) ^ mix32(seed)) >> 8) * 0x1p-24;
}

// The second largest logit, equal to the largest where that is shared.
template <class T> T second_largest(const Logits<T> &row, T top, int64_t shared) {
    if (shared > 1) return top;
    Row16<T> second{T(-kInfinity)};
    for (int64_t i = 0; i < row.n; i += kLanes) {
        Row16<T> z = row.load(i);
        second = larger(select(z < Row16<T>(top), z, Row16<T>(T(-kInfinity))), second);
    }
    return largest(second);
}

// Weights e^((z - top) / T) as whole numbers: their sums do not depend on the order of labels.
template <class T> INLINE Lanes<int64_t, kLanes> weights(const Parameters &p, const Row16<T> &z, T top) {
    return round_to_whole(widen(exp_times(z - top, T(p.rate))) * p.units);
}
// The weight of all labels. Weights are added digit by digit: a number plus 1.5 q 2^(mantissa bits) is rounded to a multiple of
// q, whose count is in the lowest bits of that sum, and what rounding took is left to the next digit.
template <class T> int64_t total_weight(const Parameters &p, const Logits<T> &row, T top) {
    constexpr int kDigits = sizeof(T) == 4 ? 3 : 2, kBits = sizeof(T) == 4 ? 21 : 30, kMantissa = sizeof(T) == 4 ? 23 : 52;
    using Digits = Lanes<Unsigned<T>, kLanes>;
    int64_t total = 0;
    Row16<T> rounder[kDigits];
    for (int d = 0; d < kDigits; d++) rounder[d] = T(1.5 * double(1ull << kMantissa) * double(1ull << (kBits * (kDigits - 1 - d))) / p.units);
    for (int64_t start = 0; start < row.n; start += kChunk) {
        Digits digits[kDigits];
        for (Digits &each : digits) each = Digits(0);
        int64_t stop = smaller(start + kChunk, row.n), i = start;
        auto add = [&](const Row16<T> &z) __attribute__((always_inline)) {
            Row16<T> rest = exp_times(z - top, T(p.rate));
            _Pragma("GCC unroll 3") for (int d = 0; d < kDigits; d++) {
                Row16<T> rounded = rest + rounder[d];
                digits[d] = digits[d] + cast<Unsigned<T>>(rounded), rest = rest - (rounded - rounder[d]);
            }
        };
        for (; i + kLanes <= stop; i += kLanes) add(Row16<T>::load(row.z + i));
        if (i < stop) add(row.load(i)), i += kLanes;
        for (int d = 0; d < kDigits; d++) {
            Digits none = cast<Unsigned<T>>(rounder[d]) * Unsigned<T>((i - start) / kLanes);
            alignas(64) Whole<T> counts[kLanes];
            cast<Whole<T>>(digits[d] - none).store(counts);
            for (int k = 0; k < kLanes; k++) total += int64_t(uint64_t(counts[k]) << (kBits * (kDigits - 1 - d)));
        }
    }
    return total;
}
// The weight of the labels strictly above a logit: they are few, as a rule.
template <class T> int64_t weight_above(const Parameters &p, const Logits<T> &row, T top, T mark) {
    Lanes<int64_t, kLanes> total(0);
    for (int64_t i = 0; i < row.n; i += kLanes) {
        Row16<T> z = row.load(i);
        if (bits(z > Row16<T>(mark))) total = total + (weights(p, z, top) & (widen(z) > widen(Row16<T>(mark))));
    }
    return fold(total, Plus());
}

// 16 numbers of two bytes each, in four.
INLINE Lanes<uint32_t, kLanes> load_short(const char *from) {
    Lanes<uint32_t, kLanes> r;
    using Wide = Lanes<uint32_t, kLanes>::Part;
    constexpr int kParts = Lanes<uint32_t, kLanes>::kParts, kPart = kLanes / kParts;
    EACH_PART {
        typedef uint16_t Short __attribute__((vector_size(2 * kPart)));
        Short part;
        memcpy(&part, from + 2 * i * kPart, sizeof part);
#if EVICP_WIDTH == 64
        r.part[i] = Wide(_mm512_cvtepu16_epi32((__m256i)part));
#elif EVICP_WIDTH == 32
        r.part[i] = Wide(_mm256_cvtepu16_epi32((__m128i)part));  // GCC would do it by quarters
#else
        r.part[i] = __builtin_convertvector(part, Wide);
#endif
    }
    return r;
}
// float16, as its bits, exactly: read as float32 the bits are 2^112 too small, subnormals included.
INLINE Row16<float> from_half(const Lanes<uint32_t, kLanes> &half) {
    using Bits = Lanes<uint32_t, kLanes>;
    Bits magnitude = (half & Bits(0x7FFF)) << 13, sign = (half & Bits(0x8000)) << 16;
    Row16<float> scaled = cast<float>(magnitude) * 0x1p112f;
    Mask<float, kLanes> is_special = Row16<float>(65504.0f) < scaled;  // infinities and NaNs keep their mantissa
    return cast<float>(select(is_special, magnitude | Bits(0x7F800000), cast<uint32_t>(scaled)) | sign);
}
// 16 numbers of two bytes each as float32.
template <int TYPE> INLINE Row16<float> widen_16(const char *from) {
    if (TYPE == kBfloat) return cast<float>(load_short(from) << 16);
#if defined(__F16C__)
    Row16<float> r;
#if EVICP_WIDTH == 64
    r.part[0] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
#else
    constexpr int kParts = Row16<float>::kParts;
    EACH_PART r.part[i] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + 16 * i)));
#endif
    return r;
#else
    return from_half(load_short(from));
#endif
}

// A row as kernels read it, from any other kind.
inline void convert(const char *from, int32_t, int64_t n, double *to) { memcpy(to, from, size_t(n) * sizeof(double)); }
inline void convert(const char *from, int32_t type, int64_t n, float *to) {
    if (type == kSingle) {
        memcpy(to, from, size_t(n) * sizeof(float));
        return;
    }
    for (int64_t k = 0; k < n; k += kLanes) {
        char sixteen[2 * kLanes] = {};
        float widened[kLanes];
        int64_t count = smaller(n - k, int64_t(kLanes));
        memcpy(sixteen, from + 2 * k, size_t(2 * count));
        (type == kHalf ? widen_16<kHalf>(sixteen) : widen_16<kBfloat>(sixteen)).store(widened);
        memcpy(to + k, widened, size_t(count) * sizeof(float));
    }
}

}  // namespace EVICP_LEVEL
}  // namespace evicp
