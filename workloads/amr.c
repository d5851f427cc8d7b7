/* amr: a cloud carried across a periodic square by a steady wind, on blocks of cells that are fine
 * where the cloud is and coarse elsewhere. The refinement moves with the cloud.
 *
 * Access pattern, by construction, with T threads:
 *   cells, cells_next   by blocks, moving: 8 KiB for each block, of which a coarse one (8 x 8
 *                       cells) uses the first sixteenth. Every few steps the blocks are divided
 *                       anew into T runs of equal work, so that the owner of a block changes all
 *                       the time; a thread also reads the edges of each block's two upwind
 *                       neighbours
 *   blocks              shared: read by all; each thread writes the state of its own blocks
 * No fixed placement suits: the cloud passes every block with different threads.
 * The master initialises everything. */
#include "workload.h"
#include <math.h>

#define COARSE 8
#define FINE 32
/* The wind, in finest cells a step. */
#define WIND_X 0.5
#define WIND_Y 0.25

struct block {
    uint32_t side; /* COARSE or FINE */
    uint32_t wanted;
    double largest;
};

static size_t per_side, count, fine_most;
static struct block *blocks;
static double *cells, *cells_next;
static size_t *first_block; /* of each thread's run */

static inline double *block_cells(double *of, size_t block) { return of + block * FINE * FINE; }

/* Mean over a cell of the initial cloud: a bump around the centre of the lower left quarter. */
static double cloud(double x, double y) {
    double extent = per_side * FINE, dx = x / extent - 0.25, dy = y / extent - 0.25;
    double square = (dx * dx + dy * dy) / (0.12 * 0.12);
    return square < 1 ? (1 - square) * (1 - square) : 0;
}

/* Converts a block of `from` cells a side to one of `to` cells: copies cells, or their means. */
static void resample(const double *in, size_t from, double *out, size_t to) {
    for (size_t i = 0; i < to * to; i++) {
        size_t y = i / to, x = i % to, parts = from > to ? from / to : 1;
        double sum = 0;
        for (size_t p = 0; p < parts * parts; p++)
            sum += in[(y * from / to + p / parts) * from + x * from / to + p % parts];
        out[i] = sum / (parts * parts);
    }
}

/* The value along an edge, at position `at` of FINE. */
static inline double right_edge(size_t block, size_t at) {
    size_t side = blocks[block].side;
    return block_cells(cells, block)[at * side / FINE * side + side - 1];
}

static inline double upper_edge(size_t block, size_t at) {
    size_t side = blocks[block].side;
    return block_cells(cells, block)[(side - 1) * side + at * side / FINE];
}

/* First-order upwind step. The flow over a block's edge is the mean of the finer side's cells. */
static void advance(size_t block) {
    size_t side = blocks[block].side, width = FINE / side;
    size_t bx = block % per_side, by = block / per_side;
    size_t left = by * per_side + (bx + per_side - 1) % per_side;
    size_t below = (by + per_side - 1) % per_side * per_side + bx;
    const double *now = block_cells(cells, block);
    double *next = block_cells(cells_next, block), largest = 0, in_left[FINE], in_below[FINE];
    for (size_t i = 0; i < side; i++) {
        in_left[i] = in_below[i] = 0;
        for (size_t at = i * width; at < (i + 1) * width; at++) {
            in_left[i] += right_edge(left, at) / width;
            in_below[i] += upper_edge(below, at) / width;
        }
    }
    for (size_t y = 0; y < side; y++)
        for (size_t x = 0; x < side; x++) {
            size_t i = y * side + x;
            double from_left = x ? now[i - 1] : in_left[y];
            double from_below = y ? now[i - side] : in_below[x];
            double gain = WIND_X * (from_left - now[i]) + WIND_Y * (from_below - now[i]);
            next[i] = now[i] + gain / width;
            largest = next[i] > largest ? next[i] : largest;
        }
    blocks[block].largest = largest;
}

/* Wants fine blocks where the cloud exceeds a tenth of its maximum, and around such blocks. */
static void want(void) {
    double threshold = 0;
    for (size_t b = 0; b < count; b++) {
        threshold = fmax(threshold, blocks[b].largest / 10);
        blocks[b].wanted = COARSE;
    }
    for (size_t b = 0; b < count; b++)
        for (size_t near = 0; near < 9 && blocks[b].largest > threshold; near++) {
            size_t x = (b % per_side + per_side + near % 3 - 1) % per_side;
            size_t y = (b / per_side + per_side + near / 3 - 1) % per_side;
            blocks[y * per_side + x].wanted = FINE;
        }
    size_t fine = 0, work = 0, done = 0;
    for (size_t b = 0; b < count; b++)
        fine += blocks[b].wanted == FINE;
    work = (fine * FINE * FINE) + (count - fine) * COARSE * COARSE;
    fine_most = fine > fine_most ? fine : fine_most;
    int team = omp_get_num_threads(), t = 0;
    for (size_t b = 0; b < count; b++) {
        for (; t < team && done >= share_begin(work, t, team); t++)
            first_block[t] = b;
        done += blocks[b].wanted * blocks[b].wanted;
    }
    for (; t <= team; t++)
        first_block[t] = count;
}

/* The blocks' new owners change the blocks' resolution as wanted. */
static void refine(struct share mine) {
    for (size_t b = mine.first; b < mine.end; b++)
        if (blocks[b].wanted != blocks[b].side) {
            double *now = block_cells(cells, b), *spare = block_cells(cells_next, b);
            resample(now, blocks[b].side, spare, blocks[b].wanted);
            blocks[b].side = blocks[b].wanted;
            memcpy(now, spare, blocks[b].side * blocks[b].side * sizeof *now);
        }
#pragma omp barrier
}

static void run(size_t steps, size_t every) {
    struct share mine = {0, 0};
    for (size_t step = 0; step < steps; step++) {
        if (step % every == 0) {
#pragma omp master
            want();
#pragma omp barrier
            mine = (struct share){first_block[omp_get_thread_num()],
                                  first_block[omp_get_thread_num() + 1]};
            refine(mine);
        }
        for (size_t b = mine.first; b < mine.end; b++)
            advance(b);
#pragma omp barrier
#pragma omp master
        {
            double *kept = cells;
            cells = cells_next;
            cells_next = kept;
        }
#pragma omp barrier
    }
}

/* The cloud's mass, and its centre in finest cells, by angles around the periodic square. */
static double mass(double *x, double *y) {
    double sum = 0, extent = per_side * FINE, part[4] = {0};
    for (size_t b = 0; b < count; b++)
        for (size_t i = 0, side = blocks[b].side; i < side * side; i++) {
            double width = FINE / side, value = block_cells(cells, b)[i] * width * width;
            double ax = 2 * M_PI * (b % per_side * FINE + (i % side + 0.5) * width) / extent;
            double ay = 2 * M_PI * (b / per_side * FINE + (i / side + 0.5) * width) / extent;
            part[0] += value * cos(ax);
            part[1] += value * sin(ax);
            part[2] += value * cos(ay);
            part[3] += value * sin(ay);
            sum += value;
        }
    *x = atan2(part[1], part[0]) * extent / (2 * M_PI);
    *y = atan2(part[3], part[2]) * extent / (2 * M_PI);
    return sum;
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("BLOCKS_PER_SIDE", 32, 8, 4096),
                                     NUMBER("STEPS", 400, 1, 1000000000),
                                     NUMBER("STEPS_PER_MESH", 8, 1, 64)};
    READ_PARAMETERS(parameters);
    per_side = parameters[0].value;
    count = per_side * per_side;
    size_t steps = parameters[1].value, bytes = count * FINE * FINE * sizeof *cells;
    blocks = allocate(count * sizeof *blocks);
    cells = allocate(bytes);
    cells_next = allocate(bytes);
    first_block = allocate((omp_get_max_threads() + 1) * sizeof *first_block);
    double began = omp_get_wtime(), from[2], to[2], extent = per_side * FINE;
    memset(cells_next, 0, bytes);
    for (size_t b = 0; b < count; b++) {
        blocks[b] = (struct block){.side = FINE};
        for (size_t i = 0; i < FINE * FINE; i++) {
            double value = cloud(b % per_side * FINE + i % FINE + 0.5,
                                 b / per_side * FINE + i / FINE + 0.5);
            block_cells(cells, b)[i] = value;
            blocks[b].largest = fmax(blocks[b].largest, value);
        }
    }
    double before = mass(&from[0], &from[1]), built = omp_get_wtime();
#pragma omp parallel
    run(steps, parameters[2].value);
    double computed = omp_get_wtime(), after = mass(&to[0], &to[1]), checksum = 0;
    for (size_t b = 0; b < count; b++)
        for (size_t i = 0; i < blocks[b].side * blocks[b].side; i++)
            checksum += block_cells(cells, b)[i] * (1 + (b + i) % 1000);
    print_result(checksum, built - began, computed - built);
    REQUIRE(fabs(after / before - 1) < 1e-9, "mass %g became %g", before, after);
    double off_x = remainder(to[0] - from[0] - WIND_X * steps, extent);
    double off_y = remainder(to[1] - from[1] - WIND_Y * steps, extent);
    REQUIRE(fine_most < count, "nothing was ever coarse");
    REQUIRE(hypot(off_x, off_y) < 0.02 * extent, "the wind carried the cloud %g cells astray",
            hypot(off_x, off_y));

    struct object objects[] = {{"cells", cells, bytes},
                               {"cells_next", cells_next, bytes},
                               {"blocks", blocks, count * sizeof *blocks}};
    PAUSE(objects);
}
