/* ft: the diffusion equation in a periodic cube, solved by three-dimensional transforms, in the
 * manner of NPB FT.
 *
 * Access pattern, by construction, with T threads; arrays are [z][y][x], n = 2^LOG2_SIDE:
 *   spectrum, work   block: thread k reads and writes share k of T of the planes (z); in the
 *                    transform along z it reads and writes share k of the rows (y) of every
 *                    plane instead: all to all
 *   decay            block: by planes, read only
 *   roots            shared: read by all, small
 *   line             private to each thread: on its stack
 * The master initialises everything, or with --parallel-init each thread its planes. */
#include "workload.h"
#include "fft_row.h"

#define SIDE_MAX 1024

static size_t n;
static struct complex *spectrum, *work, *roots;
static double *decay;

static struct complex input(size_t i) {
    return (struct complex){unit(random_at(2 * i)), unit(random_at(2 * i + 1))};
}

static struct complex output(size_t i) { return work[i]; }

static void fill(size_t first, size_t end) {
    for (size_t i = first * n * n; i < end * n * n; i++) {
        spectrum[i] = work[i] = input(i);
        double squares = 0;
        for (size_t rest = i, axis = 0; axis < 3; axis++, rest /= n) {
            double wave = rest % n < n / 2 ? (double)(rest % n) : (double)(rest % n) - (double)n;
            squares += wave * wave;
        }
        decay[i] = exp(-4e-6 * M_PI * M_PI * squares);
    }
}

/* Transforms one line with a stride, copied into the thread's own memory. */
static void transform_line(struct complex *start, size_t stride, int sign) {
    struct complex line[SIDE_MAX];
    for (size_t i = 0; i < n; i++)
        line[i] = start[i * stride];
    transform_row(line, n, roots, sign);
    for (size_t i = 0; i < n; i++)
        start[i * stride] = line[i];
}

static void transform(struct complex *cube, int sign) {
    struct share mine = my_share(n);
    for (size_t z = mine.first; z < mine.end; z++) {
        for (size_t y = 0; y < n; y++)
            transform_row(cube + (z * n + y) * n, n, roots, sign);
        for (size_t x = 0; x < n; x++)
            transform_line(cube + z * n * n + x, n, sign);
    }
#pragma omp barrier
    for (size_t y = mine.first; y < mine.end; y++)
        for (size_t x = 0; x < n; x++)
            transform_line(cube + y * n + x, n * n, sign);
#pragma omp barrier
}

static double energy(const struct complex *cube) {
    struct share mine = my_share(n * n * n);
    double sum = 0;
    for (size_t i = mine.first; i < mine.end; i++)
        sum += cube[i].re * cube[i].re + cube[i].im * cube[i].im;
    return team_sum(sum);
}

/* One time step in the spectrum, and the transform back to space, unscaled, into `work`. */
static void evolve(void) {
    struct share planes = my_share(n);
    for (size_t i = planes.first * n * n; i < planes.end * n * n; i++) {
        spectrum[i].re *= decay[i];
        spectrum[i].im *= decay[i];
        work[i] = spectrum[i];
    }
#pragma omp barrier
    transform(work, -1);
}

/* One wave of a field, by the transform's definition. */
static struct complex by_definition(struct complex (*field)(size_t), size_t wave) {
    struct complex sum = {0, 0};
    for (size_t i = 0; i < n * n * n; i++) {
        size_t phase = i % n * (wave % n) + i / n % n * (wave / n % n) + i / n / n * (wave / n / n);
        struct complex term = times(field(i), roots[phase % n]);
        sum = (struct complex){sum.re + term.re, sum.im + term.im};
    }
    return sum;
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {PARALLEL_INIT, NUMBER("LOG2_SIDE", 6, 2, 10),
                                     NUMBER("ITERATIONS", 6, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    n = (size_t)1 << parameters[1].value;
    size_t iterations = parameters[2].value, count = n * n * n;
    spectrum = allocate(count * sizeof *spectrum);
    work = allocate(count * sizeof *work);
    decay = allocate(count * sizeof *decay);
    roots = allocate(n * sizeof *roots);
    double began = omp_get_wtime(), checksum = 0, worst = 0, previous = INFINITY;
    int fell = 1;
    fill_roots(roots, n);
    fill_shares(parameters[0].value, n, fill);

    double built = omp_get_wtime();
#pragma omp parallel
    {
        transform(spectrum, 1);
        for (size_t iteration = 0; iteration < iterations; iteration++) {
            evolve();
            double in_spectrum = energy(spectrum), in_space = energy(work) / count;
#pragma omp master
            {
                worst = fmax(worst, fabs(in_space / in_spectrum - 1));
                fell &= in_spectrum < previous;
                previous = in_spectrum;
                for (size_t j = 1; j <= 1024; j++)
                    checksum += work[j * 5 % count].re + work[j * 5 % count].im;
            }
#pragma omp barrier
        }
    }
    print_result(checksum, built - began, omp_get_wtime() - built);

    REQUIRE(worst < 1e-10, "energy in space and in the spectrum differ by %g", worst);
    REQUIRE(fell, "energy did not fall by diffusion");
    size_t waves[] = {0, (n + 1) * n + 2, (n - 1) * n * n + n + 1};
    for (int w = 0; w < LENGTH(waves); w++) {
        struct complex in = by_definition(input, waves[w]), out = by_definition(output, waves[w]);
        double left = pow(decay[waves[w]], iterations);
        REQUIRE(hypot(in.re * left - out.re / count, in.im * left - out.im / count) < 1e-9 * count,
                "wave %zu did not decay as it should", waves[w]);
    }

    struct object objects[] = {{"spectrum", spectrum, count * sizeof *spectrum},
                               {"work", work, count * sizeof *work},
                               {"decay", decay, count * sizeof *decay},
                               {"roots", roots, n * sizeof *roots}};
    PAUSE(objects);
}
