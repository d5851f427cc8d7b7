/* truth SHAPE|all [MIB [MILLIONS_OF_ACCESSES]]: loops in which every memory instruction accesses
 * one known object.
 *
 *   gather   random loads from a heap array              truth_gather_object
 *   static   random loads from a static array            truth_static_object
 *   stream   consecutive loads                           truth_stream_object
 *   store    scattered stores                            truth_store_object
 *   update   scattered read-modify-write                 truth_update_object
 *   chase    each load gives the next one's address      truth_chase_object
 *   jump     a load right before a jump                  truth_jump_object
 *   compare  a comparison with memory, and a jump        truth_compare_object
 *   vector   16-byte vector loads and stores, scattered  truth_vector_object
 *   avx      like vector with 32 bytes, where there is AVX   truth_avx_object
 *   compute  arithmetic in registers, no memory at all
 *
 * Access pattern, by construction: one thread, anywhere in one object. The hot loops keep their
 * counters and random numbers in registers; `objdump -d` shows no other memory operand. Loops
 * that touch only the object also prepare it.
 *
 * One line for each shape: SHAPE OBJECT ADDRESS SIZE prepare SECONDS loop SECONDS checksum. */
#include "workload.h"
#include <immintrin.h>

#define STATIC_BYTES (256 * MIB)
#define HOT __attribute__((noinline, noclone))

/* Positions and sizes are powers of two, so that a mask makes a random position valid. */
static uint64_t truth_static_object[STATIC_BYTES / sizeof(uint64_t)];

HOT static uint64_t loop_gather(uint64_t *truth_gather_object, uint64_t mask, uint64_t count) {
    uint64_t state = random_seed(0), sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += truth_gather_object[random_next(&state) & mask];
    return sum;
}

HOT static uint64_t loop_static(uint64_t *unused, uint64_t mask, uint64_t count) {
    (void)unused;
    uint64_t state = random_seed(1), sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += truth_static_object[random_next(&state) & mask];
    return sum;
}

HOT static uint64_t loop_stream(uint64_t *truth_stream_object, uint64_t mask, uint64_t count) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum = (sum << 1 ^ sum) + truth_stream_object[i & mask];
    return sum;
}

HOT static uint64_t loop_store(uint64_t *truth_store_object, uint64_t mask, uint64_t count) {
    uint64_t state = random_seed(2);
    for (uint64_t i = 0; i < count; i++)
        truth_store_object[random_next(&state) & mask] = i;
    return state;
}

HOT static uint64_t loop_update(uint64_t *truth_update_object, uint64_t mask, uint64_t count) {
    uint64_t state = random_seed(3);
    for (uint64_t i = 0; i < count; i++)
        truth_update_object[random_next(&state) & mask] += 3;
    return state;
}

HOT static uint64_t loop_chase(uint64_t *truth_chase_object, uint64_t mask, uint64_t count) {
    (void)mask;
    uint64_t position = 0;
    for (uint64_t i = 0; i < count; i++)
        position = truth_chase_object[position];
    return position;
}

HOT static uint64_t loop_jump(uint64_t *truth_jump_object, uint64_t mask, uint64_t count) {
    uint64_t state = random_seed(4), sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = truth_jump_object[random_next(&state) & mask];
        __asm__ volatile("jmp 1f\n1:" : "+r"(value));
        sum += value;
    }
    return sum;
}

/* The empty assembly keeps the compiler from replacing the jump with arithmetic. */
HOT static uint64_t loop_compare(uint64_t *truth_compare_object, uint64_t mask, uint64_t count) {
    uint64_t state = random_seed(5), smaller = 0;
    for (uint64_t i = 0; i < count; i++)
        if (truth_compare_object[random_next(&state) & mask] < count) {
            smaller += 1;
            __asm__ volatile("" : "+r"(smaller));
        }
    return smaller;
}

HOT static uint64_t loop_vector(uint64_t *truth_vector_object, uint64_t mask, uint64_t count) {
    uint64_t state = random_seed(6);
    __m128i sum = _mm_setzero_si128();
    for (uint64_t i = 0; i < count; i += 2) {
        uint64_t at = random_next(&state);
        sum = _mm_add_epi64(
            sum, _mm_load_si128((const __m128i *)&truth_vector_object[at & mask & ~1ull]));
        _mm_store_si128((__m128i *)&truth_vector_object[at >> 20 & mask & ~1ull], sum);
    }
    return _mm_cvtsi128_si64(sum);
}

__attribute__((target("avx2"))) HOT static uint64_t loop_avx(uint64_t *truth_avx_object,
                                                             uint64_t mask, uint64_t count) {
    uint64_t state = random_seed(7);
    __m256i sum = _mm256_setzero_si256();
    for (uint64_t i = 0; i < count; i += 2) {
        uint64_t at = random_next(&state);
        sum = _mm256_add_epi64(
            sum, _mm256_load_si256((const __m256i *)&truth_avx_object[at & mask & ~3ull]));
        _mm256_store_si256((__m256i *)&truth_avx_object[at >> 20 & mask & ~3ull], sum);
    }
    return _mm_cvtsi128_si64(_mm256_castsi256_si128(sum));
}

HOT static uint64_t loop_compute(uint64_t *unused, uint64_t mask, uint64_t count) {
    (void)unused, (void)mask;
    uint64_t state = random_seed(8), sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum = sum * 6364136223846793005u + random_next(&state);
    return sum;
}

static void fill(uint64_t *array, uint64_t count) {
    uint64_t state = random_seed(9);
    for (uint64_t i = 0; i < count; i++)
        array[i] = random_next(&state);
}

/* Sattolo's shuffle: one cycle through all elements. */
static void fill_cycle(uint64_t *array, uint64_t count) {
    uint64_t state = random_seed(10);
    for (uint64_t i = 0; i < count; i++)
        array[i] = i;
    for (uint64_t i = count - 1; i > 0; i--) {
        uint64_t j = random_below(&state, i);
        uint64_t other = array[i];
        array[i] = array[j];
        array[j] = other;
    }
}

/* Each object has an allocating function of its own, so that its call site has the object's name. */
#define HEAP_OBJECT(name)                                                                     \
    __attribute__((noinline, noclone, no_icf)) static uint64_t *name(size_t bytes) {          \
        void *memory = NULL;                                                                  \
        if (posix_memalign(&memory, 64, bytes))                                               \
            die("out of memory");                                                             \
        return memory;                                                                        \
    }

HEAP_OBJECT(truth_gather_object)
HEAP_OBJECT(truth_stream_object)
HEAP_OBJECT(truth_store_object)
HEAP_OBJECT(truth_update_object)
HEAP_OBJECT(truth_chase_object)
HEAP_OBJECT(truth_jump_object)
HEAP_OBJECT(truth_compare_object)
HEAP_OBJECT(truth_vector_object)
HEAP_OBJECT(truth_avx_object)

static uint64_t *static_object(size_t bytes) {
    (void)bytes;
    return truth_static_object;
}

static uint64_t *no_object(size_t bytes) {
    (void)bytes;
    return NULL;
}

static const struct shape {
    const char *name, *object;
    uint64_t *(*allocate)(size_t bytes);
    uint64_t (*loop)(uint64_t *array, uint64_t mask, uint64_t count);
    double millions;
} shapes[] = {
    {"gather", "truth_gather_object", truth_gather_object, loop_gather, 200},
    {"static", "truth_static_object", static_object, loop_static, 200},
    {"stream", "truth_stream_object", truth_stream_object, loop_stream, 2000},
    {"store", "truth_store_object", truth_store_object, loop_store, 200},
    {"update", "truth_update_object", truth_update_object, loop_update, 200},
    {"chase", "truth_chase_object", truth_chase_object, loop_chase, 20},
    {"jump", "truth_jump_object", truth_jump_object, loop_jump, 200},
    {"compare", "truth_compare_object", truth_compare_object, loop_compare, 200},
    {"vector", "truth_vector_object", truth_vector_object, loop_vector, 200},
    {"avx", "truth_avx_object", truth_avx_object, loop_avx, 200},
    {"compute", "none", no_object, loop_compute, 1000},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static struct object run(const struct shape *shape, size_t bytes, uint64_t count) {
    if (shape->loop == loop_avx && !__builtin_cpu_supports("avx2")) {
        printf("avx - no AVX2 here, left out\n");
        return (struct object){"none", NULL, 0};
    }
    double began = omp_get_wtime();
    uint64_t *array = shape->allocate(bytes);
    uint64_t elements = bytes / sizeof *array;
    if (shape->loop == loop_chase)
        fill_cycle(array, elements);
    else if (array)
        fill(array, elements);
    double prepared = omp_get_wtime();
    uint64_t checksum = shape->loop(array, elements - 1, count);
    double done = omp_get_wtime();
    printf("%s %s 0x%lx %zu prepare %.3f loop %.3f checksum %lx\n", shape->name,
           shape->object, (unsigned long)array, array ? bytes : 0,
           prepared - began, done - prepared, (unsigned long)checksum);
    fflush(stdout);
    return (struct object){shape->object, array, array ? bytes : 0};
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: truth SHAPE|all [MIB [MILLIONS_OF_ACCESSES]]\n");
        return 2;
    }
    size_t wanted = argument(argc, argv, 2, 256) * MIB, bytes = 64;
    while (bytes * 2 <= wanted)
        bytes *= 2;
    if (bytes > STATIC_BYTES)
        die("at most 256 MiB");
    struct object objects[SHAPES];
    int count = 0;
    for (int i = 0; i < SHAPES; i++)
        if (!strcmp(argv[1], shapes[i].name) || !strcmp(argv[1], "all"))
            objects[count++] =
                run(&shapes[i], bytes, argument(argc, argv, 3, shapes[i].millions) * 1e6);
    if (!count)
        die("no such shape");
    pause_for_inspection(objects, count);
}
