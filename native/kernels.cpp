// One variant of the kernels; PCCL_VARIANT names it and the compiler's flags decide what it may use.
//
// Only plain loops over plain types: an inline function of the standard library compiled here with wide instructions
// could replace its narrow twin elsewhere in the program and crash on an older machine.
#include "kernels.hpp"

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define PCCL_JOIN_(a, b) a##b
#define PCCL_JOIN(a, b) PCCL_JOIN_(a, b)
#define PCCL_STRING_(a) #a
#define PCCL_STRING(a) PCCL_STRING_(a)

namespace pccl {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

inline float as_float(u32 bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

inline u32 as_bits(float value) {
    u32 bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

// ── element types: how each is stored, and the type it is computed in ────────────────────────────────────────────────

template <class Stored, class Computed>
struct Integer {  // computed unsigned, so that overflow wraps instead of being undefined
    using stored = Stored;
    using computed = Computed;
    static computed load(stored x) { return static_cast<computed>(x); }
    static stored store(computed x) { return static_cast<stored>(x); }
    static stored larger(stored a, stored b) { return a > b ? a : b; }
    static stored smaller(stored a, stored b) { return a < b ? a : b; }
    static stored divide(stored a, std::size_t peers) {
        // Peers fit a signed 64-bit number; a type too narrow for them divides in a wider one.
        if constexpr (static_cast<Stored>(-1) < static_cast<Stored>(0)) {
            return static_cast<stored>(static_cast<std::int64_t>(a) / static_cast<std::int64_t>(peers));
        } else {
            return static_cast<stored>(static_cast<u64>(a) / static_cast<u64>(peers));
        }
    }
};

template <class Float>
struct Real {
    using stored = Float;
    using computed = Float;
    static computed load(stored x) { return x; }
    static stored store(computed x) { return x; }
    // Written so that NaN wins from either side.
    static stored larger(stored a, stored b) { return (a > b || a != a) ? a : b; }
    static stored smaller(stored a, stored b) { return (a < b || a != a) ? a : b; }
    static stored divide(stored a, std::size_t peers) { return a / static_cast<Float>(peers); }
};

struct Half {  // IEEE binary16, rounded to nearest even; NaN becomes the one quiet NaN
    static float load(u16 h) {
        const u32 magnitude = static_cast<u32>(h & 0x7fffu) << 13;
        const u32 normal = magnitude + (112u << 23);  // the exponent's bias goes from 15 to 127
        const u32 special = magnitude | (255u << 23);
        const u32 subnormal = as_bits(static_cast<float>(static_cast<std::int32_t>(h & 0x3ffu)) * 0x1p-24f);
        const u32 exponent = h & 0x7c00u;
        const u32 sign = static_cast<u32>(h & 0x8000u) << 16;
        return as_float((exponent == 0 ? subnormal : exponent == 0x7c00u ? special : normal) | sign);
    }
    static u16 store(float value) {
        const u32 bits = as_bits(value);
        const u32 magnitude = bits & 0x7fffffffu;
        // Subnormal results: adding 0.5 leaves the rounded significand in the low bits of the sum.
        const u32 subnormal = as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f);
        const u32 rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
        const u32 normal = (rounded - (112u << 23)) >> 13;
        u32 half = magnitude < (113u << 23) ? subnormal : normal;
        half = magnitude >= (143u << 23) || half > 0x7c00u ? 0x7c00u : half;  // too large: infinity
        half = magnitude > (255u << 23) ? 0x7e00u : half | ((bits >> 16) & 0x8000u);
        return static_cast<u16>(half);
    }
#if defined(__F16C__) && defined(__AVX2__)
    static constexpr std::size_t wide = 8;
    static void load_wide(float* to, const u16* from) {
        _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    }
    static void store_wide(u16* to, const float* from) {
        const __m256 values = _mm256_loadu_ps(from);
        const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
        const __m256 is_nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
        const __m128i halves = _mm256_cvtps_ph(_mm256_blendv_ps(values, quiet, is_nan), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
    }
#endif
};

struct BFloat {  // the upper half of a float, rounded to nearest even; one quiet NaN
    static float load(u16 h) { return as_float(static_cast<u32>(h) << 16); }
    static u16 store(float value) {
        const u32 bits = as_bits(value);
        const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        return static_cast<u16>((bits & 0x7fffffffu) > (255u << 23) ? 0x7fc0u : rounded);
    }
};

// ── loops ────────────────────────────────────────────────────────────────────────────────────────────────────────────

template <class Element, class Operation>
inline void each(void* out, const void* a, const void* b, std::size_t count, Operation operation) {
    using stored = typename Element::stored;
    stored* result = static_cast<stored*>(out);
    const stored* first = static_cast<const stored*>(a);
    const stored* second = static_cast<const stored*>(b);
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
    for (std::size_t i = 0; i < count; ++i) result[i] = operation(first[i], second[i]);
}

template <class Element>
void add(void* out, const void* a, const void* b, std::size_t count) {
    each<Element>(out, a, b, count, [](auto x, auto y) {
        return Element::store(static_cast<typename Element::computed>(Element::load(x) + Element::load(y)));
    });
}

template <class Element>
void multiply(void* out, const void* a, const void* b, std::size_t count) {
    each<Element>(out, a, b, count, [](auto x, auto y) {
        return Element::store(static_cast<typename Element::computed>(Element::load(x) * Element::load(y)));
    });
}

template <class Element>
void larger(void* out, const void* a, const void* b, std::size_t count) {
    each<Element>(out, a, b, count, [](auto x, auto y) { return Element::larger(x, y); });
}

template <class Element>
void smaller(void* out, const void* a, const void* b, std::size_t count) {
    each<Element>(out, a, b, count, [](auto x, auto y) { return Element::smaller(x, y); });
}

template <class Element>
void divide(void* values, std::size_t count, std::size_t peers) {
    using stored = typename Element::stored;
    stored* value = static_cast<stored*>(values);
    if constexpr (static_cast<stored>(0.5) != stored{0}) {
        // A power of two has an exact inverse, and the product with it the same bits as the quotient in less time.
        if ((peers & (peers - 1)) == 0) {
            const stored share = stored{1} / static_cast<stored>(peers);
            for (std::size_t i = 0; i < count; ++i) value[i] *= share;
            return;
        }
    }
    for (std::size_t i = 0; i < count; ++i) value[i] = Element::divide(value[i], peers);
}

// ── 16-bit floats: a stretch at a time is widened, computed as float, and narrowed ───────────────────────────────────

constexpr std::size_t stretch = 256;  // floats: three of them stay in the first-level cache

template <class Narrow>
inline void widen(float* to, const u16* from, std::size_t count) {
    std::size_t i = 0;
    if constexpr (requires { Narrow::wide; }) {
        for (; i + Narrow::wide <= count; i += Narrow::wide) Narrow::load_wide(to + i, from + i);
    }
    for (; i < count; ++i) to[i] = Narrow::load(from[i]);
}

template <class Narrow>
inline void narrow(u16* to, const float* from, std::size_t count) {
    std::size_t i = 0;
    if constexpr (requires { Narrow::wide; }) {
        for (; i + Narrow::wide <= count; i += Narrow::wide) Narrow::store_wide(to + i, from + i);
    }
    for (; i < count; ++i) to[i] = Narrow::store(from[i]);
}

template <class Narrow, Combine combine>
void combine_narrow(void* out, const void* a, const void* b, std::size_t count) {
    float first[stretch];
    float second[stretch];
    for (std::size_t at = 0; at < count; at += stretch) {
        const std::size_t length = count - at < stretch ? count - at : stretch;
        widen<Narrow>(first, static_cast<const u16*>(a) + at, length);
        widen<Narrow>(second, static_cast<const u16*>(b) + at, length);
        combine(first, first, second, length);
        narrow<Narrow>(static_cast<u16*>(out) + at, first, length);
    }
}

template <class Narrow>
void divide_narrow(void* values, std::size_t count, std::size_t peers) {
    float wide[stretch];
    for (std::size_t at = 0; at < count; at += stretch) {
        const std::size_t length = count - at < stretch ? count - at : stretch;
        u16* place = static_cast<u16*>(values) + at;
        widen<Narrow>(wide, place, length);
        divide<Real<float>>(wide, length, peers);
        narrow<Narrow>(place, wide, length);
    }
}

template <class Narrow>
void widen_all(float* to, const void* from, std::size_t count) {
    widen<Narrow>(to, static_cast<const u16*>(from), count);
}

template <class Narrow>
void narrow_all(void* to, const float* from, std::size_t count) {
    narrow<Narrow>(static_cast<u16*>(to), from, count);
}

// ── the check ────────────────────────────────────────────────────────────────────────────────────────────────────────

constexpr u64 step = 0x9e3779b97f4a7c15u;

inline u64 load_word(const u8* bytes) {
    u64 word;
    __builtin_memcpy(&word, bytes, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

inline u64 word_share(u64 word, u64 key) {
    const u64 mixed = word ^ key;
    return static_cast<u64>(static_cast<u32>(mixed)) * static_cast<u64>(static_cast<u32>(mixed >> 32)) +
           ((word << 32) | (word >> 32));
}

// Two sums over words: one of words mixed with a key that depends on their place, so that moved or swapped words are
// noticed, and one of the plain words, which no single flipped bit leaves as it was. Any order of additions gives the
// same, so it runs as wide as the machine is.
struct Sums {
    u64 sum;
    u64 plain;
};

#if defined(__AVX2__)
// By hand: the compilers do not see that the halves need one multiplication, and the three they use cost half the
// speed.
Sums sums_of(const u8* bytes, std::size_t words) {
    __m256i sum = _mm256_setzero_si256();
    __m256i plain = sum;
    __m256i key = _mm256_setr_epi64x(step, 2 * step, 3 * step, 4 * step);
    const __m256i four_steps = _mm256_set1_epi64x(4 * step);
    std::size_t i = 0;
    for (; i + 4 <= words; i += 4, key = _mm256_add_epi64(key, four_steps)) {
        const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 8 * i));
        const __m256i mixed = _mm256_xor_si256(word, key);
        const __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
        const __m256i turned = _mm256_shuffle_epi32(word, 0xb1);
        sum = _mm256_add_epi64(sum, _mm256_add_epi64(product, turned));
        plain = _mm256_add_epi64(plain, word);
    }
    u64 parts[8];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts), sum);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts + 4), plain);
    Sums total{parts[0] + parts[1] + parts[2] + parts[3], parts[4] + parts[5] + parts[6] + parts[7]};
    for (; i < words; ++i) {
        const u64 word = load_word(bytes + 8 * i);
        total.sum += word_share(word, (i + 1) * step);
        total.plain += word;
    }
    return total;
}
#else
Sums sums_of(const u8* bytes, std::size_t words) {
    Sums total{0, 0};
    u64 key = step;
    for (std::size_t i = 0; i < words; ++i, key += step) {
        const u64 word = load_word(bytes + 8 * i);
        total.sum += word_share(word, key);
        total.plain += word;
    }
    return total;
}
#endif

u64 check(const void* data, std::size_t length) {
    const u8* bytes = static_cast<const u8*>(data);
    const std::size_t words = length / 8;
    auto [sum, plain] = sums_of(bytes, words);
    if (length % 8 != 0) {
        u8 tail[8] = {};
        __builtin_memcpy(tail, bytes + 8 * words, length % 8);
        sum += word_share(load_word(tail), (words + 1) * step);
        plain += load_word(tail);
    }
    // Joined by a bijection that is not linear: whatever leaves one sum as it was cannot cancel in the other.
    plain = (plain ^ (plain >> 32)) * 0xc2b2ae3d27d4eb4fu;
    sum ^= plain ^ (plain >> 29);
    sum ^= length * step;
    sum = (sum ^ (sum >> 32)) * 0xd6e8feb86659fd93u;
    return sum ^ (sum >> 32);
}

// ── setting aside ────────────────────────────────────────────────────────────────────────────────────────────────────

void set_aside(void* to, const void* from, std::size_t bytes) {
    u8* target = static_cast<u8*>(to);
    const u8* source = static_cast<const u8*>(from);
#if defined(__AVX2__)
    const std::size_t head = (32 - (reinterpret_cast<std::uintptr_t>(target) & 31)) & 31;
    if (head + 32 <= bytes) {
        __builtin_memcpy(target, source, head);
        std::size_t i = head;
        for (; i + 32 <= bytes; i += 32) {
            const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
            _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i), part);
        }
        _mm_sfence();
        target += i;
        source += i;
        bytes -= i;
    }
#endif
    __builtin_memcpy(target, source, bytes);
}

#define PCCL_OPERATIONS(Element) {add<Element>, add<Element>, multiply<Element>, larger<Element>, smaller<Element>}

#define PCCL_NARROW_OPERATIONS(Narrow)                                                                          \
    {combine_narrow<Narrow, add<F32>>, combine_narrow<Narrow, add<F32>>, combine_narrow<Narrow, multiply<F32>>, \
     combine_narrow<Narrow, larger<F32>>, combine_narrow<Narrow, smaller<F32>>}

using U8 = Integer<u8, u32>;
using I8 = Integer<std::int8_t, u32>;
using I16 = Integer<std::int16_t, u32>;
using U16 = Integer<u16, u32>;
using U32 = Integer<u32, u32>;
using I32 = Integer<std::int32_t, u32>;
using U64 = Integer<u64, u64>;
using I64 = Integer<std::int64_t, u64>;
using F32 = Real<float>;
using F64 = Real<double>;

}  // namespace

extern const CodecKernels PCCL_JOIN(codecs_, PCCL_VARIANT)[codecs];
extern const Kernels PCCL_JOIN(kernels_, PCCL_VARIANT);
const Kernels PCCL_JOIN(kernels_, PCCL_VARIANT) = {
    PCCL_STRING(PCCL_VARIANT),
    {PCCL_OPERATIONS(U8), PCCL_OPERATIONS(I8), PCCL_OPERATIONS(I16), PCCL_OPERATIONS(U16), PCCL_OPERATIONS(U32),
     PCCL_OPERATIONS(I32), PCCL_OPERATIONS(U64), PCCL_OPERATIONS(I64), PCCL_NARROW_OPERATIONS(Half),
     PCCL_NARROW_OPERATIONS(BFloat), PCCL_OPERATIONS(F32), PCCL_OPERATIONS(F64)},
    {divide<U8>, divide<I8>, divide<I16>, divide<U16>, divide<U32>, divide<I32>, divide<U64>, divide<I64>,
     divide_narrow<Half>, divide_narrow<BFloat>, divide<F32>, divide<F64>},
    check,
    set_aside,
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, widen_all<Half>, widen_all<BFloat>,
     nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, narrow_all<Half>, narrow_all<BFloat>,
     nullptr, nullptr},
    PCCL_JOIN(codecs_, PCCL_VARIANT),
};

}  // namespace pccl
