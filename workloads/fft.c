/* fft: the transform of 2^LOG2_POINTS complex points, forwards and backwards, in six steps by
 * way of three transposes, as in SPLASH-2.
 *
 * Access pattern, by construction, with T threads; the points are a square matrix of m rows:
 *   points, scratch  block: thread k writes share k of T of the rows, and reads them to
 *                    transform; to transpose it reads a stripe of columns, a part of every
 *                    thread's rows
 *   twiddles         block: m rows likewise, read only
 *   roots            shared: read by all, small
 * The master initialises everything, or with --parallel-init each thread its rows. */
#include "workload.h"
#include "fft_row.h"

static size_t m;
static struct complex *points, *scratch, *twiddles, *roots;

static struct complex input(size_t i) {
    return (struct complex){unit(random_at(2 * i)) - 0.5, unit(random_at(2 * i + 1)) - 0.5};
}

static void fill(size_t first, size_t end) {
    for (size_t i = first * m; i < end * m; i++) {
        points[i] = input(i);
        scratch[i] = (struct complex){0, 0};
        twiddles[i] = root(i / m * (i % m), m * m);
    }
}

/* Starts at the calling thread's own square, so that threads don't all read from one thread at once. */
static void transpose(struct complex *to, const struct complex *from, struct share rows) {
    enum { TILE = 8 };
    for (size_t step = 0; step < m; step += TILE) {
        size_t start = (rows.first / TILE * TILE + step) % m;
        size_t stop = start + TILE < m ? start + TILE : m;
        for (size_t i = rows.first; i < rows.end; i++)
            for (size_t j = start; j < stop; j++)
                to[i * m + j] = from[j * m + i];
    }
#pragma omp barrier
}

static void rows_transform(struct complex *matrix, struct share rows, int sign) {
    for (size_t i = rows.first; i < rows.end; i++)
        transform_row(matrix + i * m, m, roots, sign);
}

/* Replaces `points` by their transform; the whole team takes part. */
static void transform(int sign) {
    struct share rows = my_share(m);
    double scale = sign > 0 ? 1 : 1.0 / (m * m);
    transpose(scratch, points, rows);
    rows_transform(scratch, rows, sign);
    for (size_t i = rows.first * m; i < rows.end * m; i++) {
        struct complex twiddle = {twiddles[i].re * scale, twiddles[i].im * scale * sign};
        scratch[i] = times(scratch[i], twiddle);
    }
#pragma omp barrier
    transpose(points, scratch, rows);
    rows_transform(points, rows, sign);
#pragma omp barrier
    transpose(scratch, points, rows);
    for (size_t i = rows.first * m; i < rows.end * m; i++)
        points[i] = scratch[i];
#pragma omp barrier
}

static double my_energy(void) {
    struct share rows = my_share(m);
    double sum = 0;
    for (size_t i = rows.first * m; i < rows.end * m; i++)
        sum += points[i].re * points[i].re + points[i].im * points[i].im;
    return sum;
}

/* One frequency of the transform, by its definition. */
static struct complex by_definition(size_t frequency) {
    struct complex sum = {0, 0};
    for (size_t i = 0; i < m * m; i++) {
        struct complex term = times(input(i), root(frequency * i % (m * m), m * m));
        sum = (struct complex){sum.re + term.re, sum.im + term.im};
    }
    return sum;
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {PARALLEL_INIT, NUMBER("LOG2_POINTS, even", 14, 4, 32),
                                     NUMBER("ROUNDS", 50, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    size_t rounds = parameters[2].value;
    if (parameters[1].value % 2)
        usage(parameters, LENGTH(parameters));
    m = (size_t)1 << parameters[1].value / 2;
    size_t bytes = m * m * sizeof *points;
    points = allocate(bytes);
    scratch = allocate(bytes);
    twiddles = allocate(bytes);
    roots = allocate(m * sizeof *roots);
    double began = omp_get_wtime(), energy = 0, checksum = 0;
    fill_roots(roots, m);
    fill_shares(parameters[0].value, m, fill);

    double built = omp_get_wtime();
    struct complex probe = {0, 0};
#pragma omp parallel
    for (size_t round = 0; round < rounds; round++) {
        double before = team_sum(my_energy());
        transform(1);
        double after = team_sum(my_energy());
#pragma omp master
        {
            energy = before;
            checksum = after;
            probe = points[m + 3];
        }
#pragma omp barrier
        transform(-1);
    }
    double computed = omp_get_wtime();
    print_result(checksum, built - began, computed - built);

    double points_count = (double)m * m, error = 0;
    REQUIRE(fabs(checksum / points_count - energy) < 1e-9 * energy, "energy %g became %g", energy,
            checksum / points_count);
    for (size_t i = 0; i < m * m; i++) {
        struct complex in = input(i);
        error = fmax(error, fmax(fabs(points[i].re - in.re), fabs(points[i].im - in.im)));
    }
    REQUIRE(error < 1e-12 * (10 + rounds), "back and forth the points are off by %g", error);
    struct complex expected = by_definition(m + 3);
    REQUIRE(hypot(probe.re - expected.re, probe.im - expected.im) < 1e-9 * m,
            "frequency %zu is not what the definition says", m + 3);

    struct object objects[] = {{"points", points, bytes},
                               {"scratch", scratch, bytes},
                               {"twiddles", twiddles, bytes},
                               {"roots", roots, m * sizeof *roots}};
    PAUSE(objects);
}
