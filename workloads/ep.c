/* ep: pairs of normally distributed numbers by the polar method, counted by size, in the manner
 * of NPB EP.
 *
 * Access pattern, by construction, with T threads:
 *   batch    private to each thread: 128 Ki numbers (1 MiB), allocated by it, written and read
 *   tallies  thread k writes entry k of T, once at the end
 * Nothing is shared and there is no initialisation: placement can gain nothing. */
#include "workload.h"
#include <math.h>

#define BATCH_PAIRS ((size_t)1 << 16)

struct tally {
    _Alignas(64) double sum_x, sum_y, squares;
    uint64_t accepted, rings[10];
};

static void count_batch(struct tally *tally, double *numbers, uint64_t index) {
    uint64_t seed = random_seed(index);
    for (size_t i = 0; i < 2 * BATCH_PAIRS; i++)
        numbers[i] = 2 * unit(random_next(&seed)) - 1;
    for (size_t i = 0; i < 2 * BATCH_PAIRS; i += 2) {
        double square = numbers[i] * numbers[i] + numbers[i + 1] * numbers[i + 1];
        if (square > 1 || square == 0)
            continue;
        double scale = sqrt(-2 * log(square) / square);
        double x = scale * numbers[i], y = scale * numbers[i + 1];
        size_t ring = fmax(fabs(x), fabs(y));
        tally->accepted++;
        tally->rings[ring < 9 ? ring : 9]++;
        tally->sum_x += x;
        tally->sum_y += y;
        tally->squares += x * x + y * y;
    }
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("LOG2_PAIRS", 23, 16, 48)};
    READ_PARAMETERS(parameters);
    size_t pairs = (size_t)1 << parameters[0].value, threads = omp_get_max_threads();
    struct tally *tallies = aligned_alloc(64, threads * sizeof *tallies), all = {0};
    if (!tallies)
        die("out of memory");
    memset(tallies, 0, threads * sizeof *tallies);
    double began = omp_get_wtime();
#pragma omp parallel
    {
        struct share mine = my_share(pairs / BATCH_PAIRS);
        double *numbers = allocate(2 * BATCH_PAIRS * sizeof *numbers);
        struct tally tally = {0};
        for (size_t batch = mine.first; batch < mine.end; batch++)
            count_batch(&tally, numbers, batch);
        tallies[omp_get_thread_num()] = tally;
        free(numbers);
    }
    double computed = omp_get_wtime();
    uint64_t ringed = 0;
    for (size_t t = 0; t < threads; t++) {
        all.sum_x += tallies[t].sum_x;
        all.sum_y += tallies[t].sum_y;
        all.squares += tallies[t].squares;
        all.accepted += tallies[t].accepted;
        for (int ring = 0; ring < 10; ring++)
            ringed += tallies[t].rings[ring];
    }
    print_result(all.sum_x + all.sum_y, 0, computed - began);

    /* Within six standard deviations of the expected values. */
    double n = all.accepted, share = n / pairs, circle = M_PI / 4;
    REQUIRE(ringed == all.accepted, "%zu pairs counted of %zu", (size_t)ringed, (size_t)n);
    REQUIRE(fabs(share - circle) < 6 * sqrt(circle * (1 - circle) / pairs),
            "%g of the pairs lie in the circle", share);
    REQUIRE(fmax(fabs(all.sum_x), fabs(all.sum_y)) < 6 * sqrt(n), "the mean is not 0");
    REQUIRE(fabs(all.squares / (2 * n) - 1) < 6 / sqrt(n), "the variance is not 1");

    struct object objects[] = {{"tallies", tallies, threads * sizeof *tallies}};
    PAUSE(objects);
}
