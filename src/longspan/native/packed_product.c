/* Products of a few float32 rows with a weight of 4 or 8 bits, for decoding on a CPU.

   Inputs are rounded to 8 bits in blocks of 32, each with its own scale, so that a block's product is one of integers,
   which is exact. Blocks are added in float32.

     4 bits: out = sum over blocks of scale * step * (q . x) + (zero - 8 * scale) * step * sum(x)
     8 bits: out = scale * sum over blocks of step * (q . x)

   with weights q (4 bits: 0 to 15, two in a byte, the first of each pair in its lower half), inputs x (-127 to 127) and
   the step of their block. Scales and zeros are bfloat16. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define BLOCK 32
#define LARGEST 127.0f

static inline float from_bfloat16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &wide, sizeof number);
    return number;
}

/* One row of inputs, whole pairs of blocks; what is missing is 0. */
typedef struct {
    int8_t *numbers;
    float *steps;
    float *sums; /* step * sum of a block's numbers */
} Row;

/* `split`: a pair of blocks as 4-bit weights are unpacked, the even inputs of both blocks and then the odd ones. */
static void round_row(const float *x, int64_t inputs, int split, Row row) {
    for (int64_t block = 0; block * BLOCK < inputs; block++) {
        const float *from = x + block * BLOCK;
        int8_t *to = row.numbers + (split ? block / 2 * 2 * BLOCK + block % 2 * BLOCK / 2 : block * BLOCK);
        int count = inputs - block * BLOCK < BLOCK ? (int)(inputs - block * BLOCK) : BLOCK;
        float largest = 0.0f;
        int finite = 1, sum = 0;
        for (int i = 0; i < count; i++) {
            float size = fabsf(from[i]);
            finite &= size <= 3.4028234e38f;
            largest = size > largest ? size : largest;
        }
        float step = largest / LARGEST, inverse = step > 1e-30f ? 1.0f / step : 0.0f;
        if (!finite) {
            row.steps[block] = row.sums[block] = NAN;
            continue;
        }
        for (int i = 0; i < count; i++) {
            int number = (int)rintf(from[i] * inverse);
            to[split ? (i & 1) * BLOCK + i / 2 : i] = (int8_t)number;
            sum += number;
        }
        row.steps[block] = step;
        row.sums[block] = step * (float)sum;
    }
}

/* Sums of products, added up at the end of a row. */
#if defined(__AVX2__)
typedef __m256 Sums;

static inline Sums nothing(void) { return _mm256_setzero_ps(); }

static inline float total(Sums sums) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

/* sums + factor * (a . b + c . d), where a and c are unsigned. Pairs stay below 2^15: 4 * 15 * 127, or 2 * 127 * 127. */
static inline Sums multiply(__m256i a, __m256i b, __m256i c, __m256i d, __m256 factor, Sums sums) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    __m256i product = _mm256_dpbusd_epi32(_mm256_dpbusd_epi32(_mm256_setzero_si256(), a, b), c, d);
#else
    __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, b), _mm256_maddubs_epi16(c, d));
    __m256i product = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
#if defined(__FMA__)
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(product), factor, sums);
#else
    return _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(product), factor), sums);
#endif
}

/* A pair of blocks, or its first block alone. */
static inline Sums add4(const uint8_t *weight, const int8_t *x, const float *factors, int both, Sums sums) {
    __m256i low = _mm256_set1_epi8(15), pairs;
    __m128 first = _mm_broadcast_ss(factors), second = _mm_setzero_ps();
    if (both) {
        pairs = _mm256_loadu_si256((const __m256i *)weight);
        second = _mm_broadcast_ss(factors + 1);
    } else {
        pairs = _mm256_set_m128i(_mm_setzero_si128(), _mm_loadu_si128((const __m128i *)weight));
    }
    __m256i even = _mm256_and_si256(pairs, low), odd = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), low);
    const __m256i *inputs = (const __m256i *)x;
    return multiply(even, _mm256_loadu_si256(inputs), odd, _mm256_loadu_si256(inputs + 1), _mm256_set_m128(second, first),
                    sums);
}

static inline Sums add8(const int8_t *weight, const int8_t *x, float factor, Sums sums) {
    __m256i inputs = _mm256_loadu_si256((const __m256i *)x);
    __m256i product, numbers = _mm256_sign_epi8(_mm256_loadu_si256((const __m256i *)weight), inputs);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    product = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_abs_epi8(inputs), numbers);
#else
    product = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(inputs), numbers), _mm256_set1_epi16(1));
#endif
#if defined(__FMA__)
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(product), _mm256_set1_ps(factor), sums);
#else
    return _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(product), _mm256_set1_ps(factor)), sums);
#endif
}
#else
typedef float Sums;

static inline Sums nothing(void) { return 0.0f; }

static inline float total(Sums sums) { return sums; }

static inline Sums add4(const uint8_t *weight, const int8_t *x, const float *factors, int both, Sums sums) {
    for (int block = 0; block <= both; block++, weight += BLOCK / 2, x += BLOCK / 2) {
        int product = 0;
        for (int i = 0; i < BLOCK / 2; i++) product += (weight[i] & 15) * x[i] + (weight[i] >> 4) * x[BLOCK + i];
        sums += factors[block] * (float)product;
    }
    return sums;
}

static inline Sums add8(const int8_t *weight, const int8_t *x, float factor, Sums sums) {
    int product = 0;
    for (int i = 0; i < BLOCK; i++) product += weight[i] * x[i];
    return sums + factor * (float)product;
}
#endif

/* Rounds all rows; the memory is one piece, which the caller frees. */
static Row *round_rows(const float *x, int64_t rows, int64_t inputs, int split) {
    int64_t blocks = (inputs + 2 * BLOCK - 1) / (2 * BLOCK) * 2;
    size_t all = (size_t)(rows * blocks), head = (size_t)rows * sizeof(Row);
    char *memory = calloc(1, head + all * (2 * sizeof(float) + BLOCK));
    if (!memory) return NULL;
    Row *made = (Row *)memory;
    float *steps = (float *)(memory + head), *sums = steps + all;
    int8_t *numbers = (int8_t *)(sums + all);
    for (int64_t row = 0; row < rows; row++) {
        made[row] = (Row){numbers + row * blocks * BLOCK, steps + row * blocks, sums + row * blocks};
        round_row(x + row * inputs, inputs, split, made[row]);
    }
    return made;
}

/* Scales and zeros of at most so many blocks are widened at once. */
#define AT_ONCE 256

/* For the blocks from `first` on: the scale, and what each input of the block adds besides. `repeat` blocks share one. */
static void widen(const uint16_t *scale, const uint16_t *zero, int64_t first, int count, int64_t repeat, float *sizes,
                  float *shifts) {
    int done = 0;
#if defined(__AVX2__)
    for (; repeat == 1 && done + 8 <= count; done += 8) {
        __m128i narrow = _mm_loadu_si128((const __m128i *)(scale + first + done));
        __m256 size = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
        narrow = _mm_loadu_si128((const __m128i *)(zero + first + done));
        __m256 shift = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
        _mm256_storeu_ps(sizes + done, size);
        _mm256_storeu_ps(shifts + done, _mm256_sub_ps(shift, _mm256_mul_ps(size, _mm256_set1_ps(8.0f))));
    }
#endif
    for (; done < count; done++) {
        int64_t group = (first + done) / repeat;
        sizes[done] = from_bfloat16(scale[group]);
        shifts[done] = from_bfloat16(zero[group]) - 8.0f * sizes[done];
    }
}

/* out (rows, outputs) = x (rows, inputs) weight^T; `group` weights, a multiple of 32, share a scale and a zero. */
int product4(const float *x, int64_t rows, int64_t inputs, const uint8_t *weight, const uint16_t *scale,
             const uint16_t *zero, int64_t outputs, int64_t group, float *out, int threads) {
    int64_t blocks = inputs / BLOCK, groups = inputs / group, repeat = group / BLOCK;
    Row *made = round_rows(x, rows, inputs, 1);
    if (!made) return 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t output = 0; output < outputs; output++) {
        float sizes[AT_ONCE], shifts[AT_ONCE], factors[AT_ONCE];
        for (int64_t first = 0; first < blocks; first += AT_ONCE) {
            int count = blocks - first < AT_ONCE ? (int)(blocks - first) : AT_ONCE;
            const uint8_t *numbers = weight + (output * blocks + first) * (BLOCK / 2);
            widen(scale + output * groups, zero + output * groups, first, count, repeat, sizes, shifts);
            for (int64_t row = 0; row < rows; row++) {
                const int8_t *inputs_of = made[row].numbers + first * BLOCK;
                const float *steps = made[row].steps + first, *sums_of = made[row].sums + first;
                float rest = 0.0f;
                for (int block = 0; block < count; block++) {
                    factors[block] = sizes[block] * steps[block];
                    rest += shifts[block] * sums_of[block];
                }
                Sums one = nothing(), other = nothing(); /* two, so that an addition need not wait for the last one */
                int block = 0;
                for (; block + 4 <= count; block += 4) {
                    one = add4(numbers + block * BLOCK / 2, inputs_of + block * BLOCK, factors + block, 1, one);
                    other = add4(numbers + (block + 2) * BLOCK / 2, inputs_of + (block + 2) * BLOCK,
                                 factors + block + 2, 1, other);
                }
                for (; block < count; block += 2)
                    one = add4(numbers + block * BLOCK / 2, inputs_of + block * BLOCK, factors + block,
                               block + 1 < count, one);
                float sum = total(one) + total(other) + rest, *to = out + row * outputs + output;
                *to = first ? *to + sum : sum;
            }
        }
    }
    free(made);
    return 0;
}

/* The same with a weight of 8 bits and a scale for each output; `stride` is the length of its rows, a multiple of 32. */
int product8(const float *x, int64_t rows, int64_t inputs, const int8_t *weight, int64_t stride, const uint16_t *scale,
             int64_t outputs, float *out, int threads) {
    int64_t blocks = (inputs + BLOCK - 1) / BLOCK;
    Row *made = round_rows(x, rows, inputs, 0);
    if (!made) return 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t output = 0; output < outputs; output++) {
        const int8_t *numbers = weight + output * stride;
        for (int64_t row = 0; row < rows; row++) {
            const int8_t *inputs_of = made[row].numbers;
            const float *steps = made[row].steps;
            Sums one = nothing(), other = nothing();
            int64_t block = 0;
            for (; block + 2 <= blocks; block += 2) {
                one = add8(numbers + block * BLOCK, inputs_of + block * BLOCK, steps[block], one);
                other = add8(numbers + (block + 1) * BLOCK, inputs_of + (block + 1) * BLOCK, steps[block + 1], other);
            }
            if (block < blocks) one = add8(numbers + block * BLOCK, inputs_of + block * BLOCK, steps[block], one);
            out[row * outputs + output] = (total(one) + total(other)) * from_bfloat16(scale[output]);
        }
    }
    free(made);
    return 0;
}
