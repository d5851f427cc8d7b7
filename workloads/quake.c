/* quake: elastic waves on an irregular mesh, by explicit steps of time over a sparse matrix of 3 x
 * 3 blocks, in the manner of SPEC OMP's equake.
 *
 * Access pattern, by construction, with T threads; every row's arrays are allocations of their own:
 *   blocks, columns  block: thread k reads the arrays of share k of T of the rows (72 and 4 bytes
 *                    for each of 7 to 27 neighbours)
 *   now              gathered by all: thread k reads its own rows' vectors and their neighbours',
 *                    most within a few thousand rows, because the mesh is numbered irregularly
 *   next             block: 24 bytes a row, written
 *   now and next change places every step.
 * The master allocates and initialises everything, row by row, as if it read the mesh from a file. */
#include "workload.h"
#include <math.h>

/* Node numbers are shuffled within windows of this many. */
#define WINDOW 1024

struct row {
    uint32_t length, *columns;
    double (*blocks)[9];
    double *vectors[2], mass;
};

static size_t side, count;
static struct row *rows;
static uint32_t *number; /* of the node at a place of the lattice */

static void number_nodes(void) {
    uint64_t seed = random_seed(5);
    for (size_t i = 0; i < count; i++)
        number[i] = i;
    for (size_t i = 0; i < count; i++) {
        size_t window = i / WINDOW * WINDOW;
        size_t other = window + random_below(&seed, i - window + 1);
        uint32_t kept = number[i];
        number[i] = number[other];
        number[other] = kept;
    }
}

/* The lattice place of neighbour `which` of 27; `count` if it lies beyond the boundary. */
static size_t neighbour(size_t place, int which) {
    size_t x = place % side + which % 3 - 1, y = place / side % side + which / 3 % 3 - 1;
    size_t z = place / side / side + which / 9 - 1;
    return x < side && y < side && z < side ? (z * side + y) * side + x : count;
}

/* Stiffness of the spring between two nodes, 0 without a spring; symmetric in the two nodes. */
static double stiffness(size_t place, size_t other) {
    uint64_t low = place < other ? place : other, high = place < other ? other : place;
    double chance = unit(random_at(low * count + high));
    int far = (place % side != other % side) + (place / side % side != other / side % side) +
              (place / side / side != other / side / side);
    return far == 1 || chance < 0.4 ? 0.5 + chance : 0;
}

static void connect(size_t place) {
    struct row *row = &rows[number[place]];
    size_t others[27];
    row->mass = 1 + unit(random_at(place));
    row->length = 1;
    others[0] = place;
    for (int which = 0; which < 27; which++) {
        size_t other = neighbour(place, which);
        if (which != 13 && other < count && stiffness(place, other) > 0)
            others[row->length++] = other;
    }
    row->columns = allocate(row->length * sizeof *row->columns);
    row->blocks = allocate(row->length * sizeof *row->blocks);
    for (int v = 0; v < 2; v++) {
        row->vectors[v] = allocate(3 * sizeof(double));
        memset(row->vectors[v], 0, 3 * sizeof(double));
    }
    memset(row->blocks[0], 0, sizeof row->blocks[0]);
    for (uint32_t k = 0; k < row->length; k++) {
        row->columns[k] = number[others[k]];
        if (!k)
            continue;
        double along[3] = {(double)(others[k] % side) - (double)(place % side),
                           (double)(others[k] / side % side) - (double)(place / side % side),
                           (double)(others[k] / side / side) - (double)(place / side / side)};
        double square = along[0] * along[0] + along[1] * along[1] + along[2] * along[2];
        for (int e = 0; e < 9; e++) {
            row->blocks[k][e] = -stiffness(place, others[k]) * along[e / 3] * along[e % 3] / square;
            row->blocks[0][e] -= row->blocks[k][e];
        }
    }
}

/* Row i of the matrix times the vectors `v`. */
static inline void multiply(size_t i, int v, double *out) {
    const struct row *row = &rows[i];
    out[0] = out[1] = out[2] = 0;
    for (uint32_t k = 0; k < row->length; k++) {
        const double *block = row->blocks[k], *x = rows[row->columns[k]].vectors[v];
        for (int d = 0; d < 3; d++)
            out[d] += block[3 * d] * x[0] + block[3 * d + 1] * x[1] + block[3 * d + 2] * x[2];
    }
}

#define TIME_STEP 0.2

/* vectors[1 - v] holds the previous step and gets the next one. The shock pushes the node at the
 * centre along z, and has died out after `shock` steps. */
static void step(struct share mine, int v, size_t time, size_t shock) {
    size_t centre = number[(side / 2 * side + side / 2) * side + side / 2];
    for (size_t i = mine.first; i < mine.end; i++) {
        double force[3], *next = rows[i].vectors[1 - v], *now = rows[i].vectors[v];
        multiply(i, v, force);
        if (i == centre && time < shock)
            force[2] -= sin(M_PI * time / shock);
        for (int d = 0; d < 3; d++)
            next[d] = 2 * now[d] - next[d] - TIME_STEP * TIME_STEP / rows[i].mass * force[d];
    }
#pragma omp barrier
}

/* Energy of the leapfrog scheme: half (v M v + u_n K u_n+1), which linear steps preserve exactly. */
static double energy(struct share mine) {
    double sum = 0;
    for (size_t i = mine.first; i < mine.end; i++) {
        double force[3], *a = rows[i].vectors[0], *b = rows[i].vectors[1];
        multiply(i, 0, force);
        for (int d = 0; d < 3; d++) {
            double velocity = (b[d] - a[d]) / TIME_STEP;
            sum += 0.5 * (rows[i].mass * velocity * velocity + b[d] * force[d]);
        }
    }
    return team_sum(sum);
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("NODES_PER_SIDE", 32, 2, 1000),
                                     NUMBER("STEPS", 40, 10, 1000000000)};
    READ_PARAMETERS(parameters);
    side = parameters[0].value;
    count = side * side * side;
    size_t steps = parameters[1].value, shock = steps / 4;
    rows = allocate(count * sizeof *rows);
    number = allocate(count * sizeof *number);
    double began = omp_get_wtime(), early = 0, late = 0;
    number_nodes();
    for (size_t place = 0; place < count; place++)
        connect(place);

    double built = omp_get_wtime();
#pragma omp parallel
    {
        struct share mine = my_share(count);
        double first = 0;
        for (size_t time = 0; time < steps; time++) {
            if (time == shock + 1)
                first = energy(mine);
            step(mine, time % 2, time, shock);
        }
        double last = energy(mine);
#pragma omp master
        {
            early = first;
            late = last;
        }
    }
    print_result(late, built - began, omp_get_wtime() - built);
    REQUIRE(late > 0 && fabs(late / early - 1) < 1e-9, "energy %g became %g after the shock", early,
            late);
    double momentum[3] = {0}, size = 0;
    for (size_t i = 0; i < count; i++)
        for (int d = 0; d < 3; d++) {
            double change = rows[i].mass * (rows[i].vectors[1][d] - rows[i].vectors[0][d]);
            momentum[d] += change;
            size += fabs(change);
        }
    REQUIRE(fmax(fabs(momentum[0]), fabs(momentum[1])) < 1e-9 * size,
            "a push along z moved the whole sideways");

    /* The first row's arrays represent those of all rows. */
    struct object objects[] = {{"rows", rows, count * sizeof *rows},
                               {"blocks", rows[0].blocks, rows[0].length * sizeof *rows[0].blocks},
                               {"columns", rows[0].columns,
                                rows[0].length * sizeof *rows[0].columns},
                               {"vectors", rows[0].vectors[0], 3 * sizeof(double)}};
    PAUSE(objects);
}
