/* Renders a volume of densities by casting rays, for volrend and splash_mix. */
#ifndef VOLREND_H
#define VOLREND_H

#include "workload.h"
#include <math.h>

#define VOLREND_TILE 4
#define VOLREND_BLOCK 8
/* Largest density that counts as air. */
#define VOLREND_AIR 20

static struct {
    uint8_t *densities, *shades; /* [z][y][x] */
    uint8_t *largest;            /* density in each block, one sample beyond its end included */
    float opacity[256];
    uint32_t *image; /* the latest frame, tile after tile */
    size_t n, blocks, lit;
    double least_lit, most_lit; /* of all frames, pixels */
    uint64_t checksum;
} volume;

static inline uint8_t density(size_t z, size_t y, size_t x) {
    return volume.densities[(z * volume.n + y) * volume.n + x];
}

static double volrend_radius(void) { return 0.4 * volume.n; }

/* Density of a simple head: skin, skull and brain, each with noise. */
static uint8_t tissue(size_t index, double r) {
    double depth = r / volrend_radius();
    int noise = random_at(index) % 16;
    return depth > 1 ? 0 : depth > 0.93 ? 50 + noise : depth > 0.83 ? 200 + noise : 90 + noise;
}

static void fill_block(size_t bz, size_t by, size_t bx) {
    size_t last = volume.n - 1;
    uint8_t *most = &volume.largest[(bz * volume.blocks + by) * volume.blocks + bx];
    *most = 0;
    for (size_t z = bz * VOLREND_BLOCK; z <= (bz + 1) * VOLREND_BLOCK && z <= last; z++)
        for (size_t y = by * VOLREND_BLOCK; y <= (by + 1) * VOLREND_BLOCK && y <= last; y++)
            for (size_t x = bx * VOLREND_BLOCK; x <= (bx + 1) * VOLREND_BLOCK && x <= last; x++)
                if (*most < density(z, y, x))
                    *most = density(z, y, x);
}

/* Builds a cube of `n` samples a side, a multiple of VOLREND_BLOCK; images have n x n pixels. */
static void volrend_build(size_t n) {
    volume.n = n;
    volume.blocks = n / VOLREND_BLOCK;
    volume.least_lit = INFINITY;
    volume.densities = allocate(n * n * n);
    volume.shades = allocate(n * n * n);
    volume.largest = allocate(volume.blocks * volume.blocks * volume.blocks);
    volume.image = allocate(n * n * sizeof *volume.image);
    memset(volume.image, 0, n * n * sizeof *volume.image);
    for (int d = 0; d < 256; d++)
        volume.opacity[d] = d <= VOLREND_AIR ? 0 : d < 80 ? 0.05 : d < 150 ? 0.1 : 0.3;
    for (size_t i = 0; i < n * n * n; i++) {
        double x = i % n - 0.5 * n, y = i / n % n - 0.5 * n, z = i / n / n - 0.5 * n;
        volume.densities[i] = tissue(i, sqrt(x * x + y * y + z * z));
        volume.shades[i] = 0;
    }
    for (size_t z = 1; z < n - 1; z++)
        for (size_t y = 1; y < n - 1; y++)
            for (size_t x = 1; x < n - 1; x++) {
                double gx = density(z, y, x + 1) - density(z, y, x - 1);
                double gy = density(z, y + 1, x) - density(z, y - 1, x);
                double gz = density(z + 1, y, x) - density(z - 1, y, x);
                double length = sqrt(gx * gx + gy * gy + gz * gz) + 1;
                volume.shades[(z * n + y) * n + x] = 100 + 100 * fabs(gx + gy - gz) / length / 1.8;
            }
    for (size_t b = 0; b < volume.blocks * volume.blocks * volume.blocks; b++)
        fill_block(b / volume.blocks / volume.blocks, b / volume.blocks % volume.blocks,
                   b % volume.blocks);
}

/* The density between samples, interpolated linearly along each axis. */
static inline double between(double z, double y, double x) {
    size_t k = z, j = y, i = x;
    double dz = z - k, dy = y - j, dx = x - i;
    double near = (density(k, j, i) * (1 - dx) + density(k, j, i + 1) * dx) * (1 - dy) +
                  (density(k, j + 1, i) * (1 - dx) + density(k, j + 1, i + 1) * dx) * dy;
    double far = (density(k + 1, j, i) * (1 - dx) + density(k + 1, j, i + 1) * dx) * (1 - dy) +
                 (density(k + 1, j + 1, i) * (1 - dx) + density(k + 1, j + 1, i + 1) * dx) * dy;
    return near * (1 - dz) + far * dz;
}

/* Follows a ray from the front until hardly any light is left. The eye circles the volume once in
 * 36 frames. `skip` leaves out blocks of air, which must change only the time. */
static uint32_t cast(size_t frame, double column, double row, int skip) {
    double angle = 2 * M_PI * (frame % 36) / 36, half = volume.n / 2.0, end = volume.n - 1.001;
    double ax = -sin(angle), ay = cos(angle), light = 1, seen = 0;
    for (double t = -half; t < half && light > 0.02; t += 1) {
        double x = half + (column - half) * ay + t * ax, y = half - (column - half) * ax + t * ay;
        if (x < 0 || y < 0 || x > end || y > end || row > end)
            continue;
        size_t block = ((size_t)row / VOLREND_BLOCK * volume.blocks + (size_t)y / VOLREND_BLOCK) *
                           volume.blocks + (size_t)x / VOLREND_BLOCK;
        if (skip && volume.largest[block] <= VOLREND_AIR)
            continue;
        double opacity = volume.opacity[(uint8_t)between(row, y, x)];
        if (opacity == 0)
            continue;
        size_t sample = ((size_t)row * volume.n + (size_t)y) * volume.n + (size_t)x;
        seen += light * opacity * (20 + volume.shades[sample]);
        light *= 1 - opacity;
    }
    return seen * 1000;
}

/* Renders the tiles first, first + stride, … of a frame. */
static void volrend_tiles(size_t frame, size_t first, size_t stride) {
    size_t row = volume.n / VOLREND_TILE, pixels = VOLREND_TILE * VOLREND_TILE;
    for (size_t tile = first; tile < row * row; tile += stride)
        for (size_t pixel = 0; pixel < pixels; pixel++)
            volume.image[tile * pixels + pixel] =
                cast(frame, tile % row * VOLREND_TILE + pixel % VOLREND_TILE + 0.5,
                     tile / row * VOLREND_TILE + pixel / VOLREND_TILE + 0.5, 1);
}

/* Called by one thread when a frame is done. */
static void volrend_add_frame(void) {
    double lit = 0;
    for (size_t i = 0; i < volume.n * volume.n; i++) {
        volume.checksum += volume.image[i];
        lit += volume.image[i] > 0;
    }
    volume.least_lit = fmin(volume.least_lit, lit);
    volume.most_lit = fmax(volume.most_lit, lit);
}

/* Seen from any side, a ball is a disc within a pixel at its edge; skipping air must change nothing. */
static void volrend_check(void) {
    double radius = volrend_radius(), disc = M_PI * radius * radius, edge = 2 * M_PI * radius;
    REQUIRE(volume.least_lit > disc - edge && volume.most_lit < disc + edge,
            "a ball covers %g to %g pixels instead of %g", volume.least_lit, volume.most_lit, disc);
    for (size_t i = 0; i < 500; i++) {
        double column = volume.n * unit(random_at(2 * i));
        double row = volume.n * unit(random_at(2 * i + 1));
        REQUIRE(cast(i, column, row, 1) == cast(i, column, row, 0), "skipping air changes ray %zu",
                i);
    }
}

#define VOLREND_OBJECTS                                                                            \
    {"densities", volume.densities, volume.n *volume.n *volume.n},                                 \
        {"shades", volume.shades, volume.n *volume.n *volume.n},                                   \
        {"largest", volume.largest, volume.blocks *volume.blocks *volume.blocks}, {                \
        "pixels", volume.image, volume.n *volume.n * sizeof *volume.image                          \
    }

#endif
