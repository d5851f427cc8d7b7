/* A basin of water driven by wind, for ocean and splash_mix. The barotropic vorticity equation on a
 * beta plane in the unit square,
 *
 *     dz/dt = -J(p, z) - dp/dx + curl of the wind - FRICTION z        laplacian p = z
 *
 * with Arakawa's J; red-black over-relaxation gives the stream function p, zero on the shore.
 * A time step has OCEAN_STAGES stages; all threads must finish a stage before the next stage
 * begins. */
#ifndef OCEAN_H
#define OCEAN_H

#include "workload.h"
#include <math.h>

#define OCEAN_SWEEPS 10
#define OCEAN_STAGES (1 + 2 * OCEAN_SWEEPS)
#define OCEAN_TIME_STEP 0.5
#define OCEAN_FRICTION 0.05
#define OCEAN_WIND 1e-4

static struct {
    double *stream, *vorticity[2], *wind;
    size_t n;
} basin;

static void ocean_fill(size_t first, size_t end) {
    for (size_t i = first * basin.n; i < end * basin.n; i++) {
        basin.stream[i] = basin.vorticity[0][i] = basin.vorticity[1][i] = 0;
        basin.wind[i] = -OCEAN_WIND * sin(M_PI * (i / basin.n) / (basin.n - 1));
    }
}

/* A basin of `n` points a side, including the shore. */
static void ocean_build(size_t n, size_t in_parallel) {
    size_t bytes = n * n * sizeof(double);
    basin.n = n;
    basin.stream = allocate(bytes);
    basin.vorticity[0] = allocate(bytes);
    basin.vorticity[1] = allocate(bytes);
    basin.wind = allocate(bytes);
    fill_shares(in_parallel, n, ocean_fill);
}

/* Arakawa's mean of three forms of dp/dx dz/dy - dp/dy dz/dx, times 12 h^2. */
static inline double jacobian(const double *p, const double *z, int64_t n) {
    return (p[1] - p[-1]) * (z[n] - z[-n]) - (p[n] - p[-n]) * (z[1] - z[-1]) +
           p[1] * (z[n + 1] - z[-n + 1]) - p[-1] * (z[n - 1] - z[-n - 1]) -
           p[n] * (z[n + 1] - z[n - 1]) + p[-n] * (z[-n + 1] - z[-n - 1]) +
           z[n] * (p[n + 1] - p[n - 1]) - z[-n] * (p[-n + 1] - p[-n - 1]) -
           z[1] * (p[n + 1] - p[-n + 1]) + z[-1] * (p[n - 1] - p[-n - 1]);
}

/* Computes part k of `parts` of a stage, divided by rows. */
static void ocean_stage(size_t step, size_t stage, int k, int parts) {
    struct share rows = share_of(basin.n - 2, k, parts);
    int64_t n = basin.n;
    double h = 1.0 / (n - 1), *p = basin.stream;
    const double *old = basin.vorticity[step % 2];
    double *new = basin.vorticity[(step + 1) % 2];
    for (int64_t row = rows.first + 1; row < (int64_t)rows.end + 1; row++)
        if (stage == 0)
            for (int64_t i = row * n + 1; i < row * n + n - 1; i++)
                new[i] = old[i] + OCEAN_TIME_STEP *
                                      (-jacobian(p + i, old + i, n) / (12 * h * h) -
                                       (p[i + 1] - p[i - 1]) / (2 * h) + basin.wind[i] -
                                       OCEAN_FRICTION * old[i]);
        else
            for (int64_t i = row * n + 1 + (row + stage) % 2; i < row * n + n - 1; i += 2)
                p[i] += 1.7 * (0.25 * (p[i - 1] + p[i + 1] + p[i - n] + p[i + n] - h * h * new[i]) -
                               p[i]);
}

static double ocean_checksum(void) {
    double sum = 0;
    for (size_t i = 0; i < basin.n * basin.n; i++)
        sum += basin.stream[i];
    return sum / OCEAN_WIND;
}

/* The functional that Poisson's equation minimises, and the transport west and east of the middle. */
static void ocean_look(const double *vorticity, double *functional, double *west, double *east) {
    size_t n = basin.n;
    *functional = *west = *east = 0;
    for (size_t i = n; i < n * n; i++) {
        if (i % n == 0)
            continue;
        double *p = &basin.stream[i], h = 1.0 / (n - 1), dx = *p - p[-1], dy = *p - p[-(int64_t)n];
        *functional += 0.5 * (dx * dx + dy * dy) + h * h * vorticity[i] * *p;
        *(2 * (i % n) < n ? west : east) += fabs(*p);
    }
}

/* After `steps`: the stream function has come nearer to the vorticity's, and relaxation brings it nearer
 * still; and the current, once it has spun up, is stronger in the west, as Stommel found. */
static void ocean_check(size_t steps) {
    double *vorticity = basin.vorticity[steps % 2], before, after, west, east;
    ocean_look(vorticity, &before, &west, &east);
    REQUIRE(before < 0, "the stream function does not belong to the vorticity");
    REQUIRE(steps < 40 || west > east, "transport %g in the west, %g in the east", west, east);
    for (size_t stage = 1; stage < OCEAN_STAGES; stage++)
        ocean_stage(steps + 1, stage, 0, 1);
    ocean_look(vorticity, &after, &west, &east);
    REQUIRE(after <= before + 1e-9 * fabs(before), "relaxation leads away from the solution");
}

#define OCEAN_OBJECTS                                                                              \
    {"stream", basin.stream, basin.n *basin.n * sizeof(double)},                                   \
        {"vorticity_0", basin.vorticity[0], basin.n *basin.n * sizeof(double)},                    \
        {"vorticity_1", basin.vorticity[1], basin.n *basin.n * sizeof(double)}, {                  \
        "wind", basin.wind, basin.n *basin.n * sizeof(double)                                      \
    }

#endif
