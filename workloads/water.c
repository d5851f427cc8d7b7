/* water: molecular dynamics of liquid water, with the alternating access pattern of SPLASH's
 * Water. Flexible three-site molecules (springs between the sites, charges, Lennard-Jones between
 * the oxygens, force-shifted at half the box), velocity Verlet, half a femtosecond a step.
 *
 * Access pattern, by construction, with T threads:
 *   molecules   alternating: for moves and springs, thread k reads and writes share k of T in the
 *               order of the array; for the forces between molecules it writes the forces of share
 *               k of T in `order`, and reads all positions
 *   order       shared: read by all; molecules sorted by their place along x, by the master every
 *               ten steps, so that the second owner changes as molecules drift
 * The array is sorted by z first, so that most molecules have two different owners.
 * The master initialises everything. */
#include "workload.h"
#include <math.h>

/* Ångström, femtosecond, atomic mass; energy in kJ/mol, which ACCELERATION converts. */
#define ACCELERATION 1e-4
#define COULOMB 1389.354
#define EPSILON 0.6502
#define SIGMA 3.1655
#define SPACING 3.1
#define TIME_STEP 0.5

static const double mass[3] = {15.9994, 1.008, 1.008}, charge[3] = {-0.82, 0.41, 0.41};

/* 288 bytes, about the size of SPLASH's molecule, which stores more derivatives. */
struct molecule {
    double position[3][3], velocity[3][3], force[3][3];
    double potential; /* half of what it shares with others */
    double padding[8];
};

static size_t count, per_side;
static double box, cutoff, edge_six; /* (SIGMA / cutoff)^6 */
static struct molecule *molecules;
static uint32_t *order;

static void build(void) {
    uint64_t seed = random_seed(0);
    static const double site[3][3] = {{0, 0, 0}, {1.012, 0, 0}, {-0.3993, 0.9299, 0}};
    double momentum[3] = {0}, total = 0;
    for (size_t i = 0; i < count; i++) {
        struct molecule *m = &molecules[i];
        size_t cell[3] = {i % per_side, i / per_side % per_side, i / per_side / per_side};
        *m = (struct molecule){.potential = 0};
        order[i] = i;
        for (int s = 0; s < 3; s++)
            for (int d = 0; d < 3; d++) {
                /* One hydrogen towards the next oxygen along x, the other one along y. */
                m->position[s][d] = cell[d] * SPACING + site[s][d];
                /* About 300 K: sqrt(R T / mass) is 0.0158 / sqrt(mass) Å/fs; uniform here. */
                m->velocity[s][d] = 0.0158 * sqrt(3 / mass[s]) * (2 * unit(random_next(&seed)) - 1);
                momentum[d] += mass[s] * m->velocity[s][d];
            }
        total += mass[0] + mass[1] + mass[2];
    }
    for (size_t i = 0; i < count; i++)
        for (int s = 0; s < 3; s++)
            for (int d = 0; d < 3; d++)
                molecules[i].velocity[s][d] -= momentum[d] / total;
}

/* Insertion sort: the order is nearly sorted from the second time on. */
static void sort_by_place(void) {
    for (size_t i = 1; i < count; i++) {
        uint32_t moved = order[i];
        double place = molecules[moved].position[0][0];
        size_t j = i;
        for (; j > 0 && molecules[order[j - 1]].position[0][0] > place; j--)
            order[j] = order[j - 1];
        order[j] = moved;
    }
}

static void spring(struct molecule *m, int a, int b, double stiffness, double length) {
    double along[3], square = 0;
    for (int d = 0; d < 3; d++) {
        along[d] = m->position[b][d] - m->position[a][d];
        square += along[d] * along[d];
    }
    double r = sqrt(square), pull = stiffness * (r - length);
    for (int d = 0; d < 3; d++) {
        m->force[a][d] += pull * along[d] / r;
        m->force[b][d] -= pull * along[d] / r;
    }
    m->potential += 0.5 * pull * (r - length);
}

/* The force of site b of `other` on site a of `m`. */
static inline void attract(struct molecule *m, int a, const struct molecule *other, int b) {
    double along[3], square = 0;
    for (int d = 0; d < 3; d++) {
        along[d] = short_way(m->position[a][d] - other->position[b][d], box);
        square += along[d] * along[d];
    }
    if (square >= cutoff * cutoff)
        return;
    double r = sqrt(square), product = COULOMB * charge[a] * charge[b];
    double edge = product / (cutoff * cutoff);
    double energy = product / r - product / cutoff + edge * (r - cutoff);
    double force = product / square - edge;
    if (a == 0 && b == 0) {
        double two = SIGMA * SIGMA / square, six = two * two * two;
        double edge_force = 24 * EPSILON * (2 * edge_six * edge_six - edge_six) / cutoff;
        energy += 4 * EPSILON * (six * six - six - edge_six * edge_six + edge_six) +
                  edge_force * (r - cutoff);
        force += 24 * EPSILON * (2 * six * six - six) / r - edge_force;
    }
    m->potential += 0.5 * energy;
    for (int d = 0; d < 3; d++)
        m->force[a][d] += force * along[d] / r;
}

static void pull_together(struct molecule *m) {
    memset(m->force, 0, sizeof m->force);
    m->potential = 0;
    spring(m, 0, 1, 4431.53, 1.012);
    spring(m, 0, 2, 4431.53, 1.012);
    spring(m, 1, 2, 1200, 1.690);
}

static void attract_all(struct molecule *m) {
    for (const struct molecule *other = molecules; other < molecules + count; other++)
        for (int pair = 0; pair < 9 && other != m; pair++)
            attract(m, pair / 3, other, pair % 3);
}

/* Forces of springs in the order of the array; then forces between molecules in `order`. */
static void forces(void) {
    struct share mine = my_share(count);
    for (size_t i = mine.first; i < mine.end; i++)
        pull_together(&molecules[i]);
#pragma omp barrier
    for (size_t i = mine.first; i < mine.end; i++)
        attract_all(&molecules[order[i]]);
#pragma omp barrier
}

static void kick(struct molecule *m) {
    for (int s = 0; s < 3; s++)
        for (int d = 0; d < 3; d++)
            m->velocity[s][d] += 0.5 * TIME_STEP * ACCELERATION * m->force[s][d] / mass[s];
}

static void step(void) {
    struct share mine = my_share(count);
    for (size_t i = mine.first; i < mine.end; i++) {
        kick(&molecules[i]);
        for (int s = 0; s < 3; s++)
            for (int d = 0; d < 3; d++)
                molecules[i].position[s][d] += TIME_STEP * molecules[i].velocity[s][d];
    }
#pragma omp barrier
    forces();
    for (size_t i = mine.first; i < mine.end; i++)
        kick(&molecules[i]);
#pragma omp barrier
}

static double kinetic(size_t first, size_t end) {
    double sum = 0;
    for (size_t i = first; i < end; i++)
        for (int s = 0; s < 3; s++)
            for (int d = 0; d < 3; d++)
                sum += 0.5 * mass[s] * molecules[i].velocity[s][d] * molecules[i].velocity[s][d];
    return sum / ACCELERATION;
}

static double my_energy(void) {
    struct share mine = my_share(count);
    double sum = kinetic(mine.first, mine.end);
    for (size_t i = mine.first; i < mine.end; i++)
        sum += molecules[i].potential;
    return sum;
}

/* All potential that involves `m`; also computes its forces anew. */
static double potential_with(struct molecule *m) {
    pull_together(m);
    double within = m->potential;
    attract_all(m);
    return within + 2 * (m->potential - within);
}

/* Checks that a force equals the fall of the potential along its direction, by differences. */
static void check_forces(void) {
    const double shift = 1e-4;
    for (size_t sample = 0; sample < 9; sample++) {
        struct molecule *m = &molecules[random_at(sample) % count];
        double *at = &m->position[sample % 3][sample / 3], kept = *at;
        potential_with(m);
        double force = m->force[sample % 3][sample / 3];
        *at = kept + shift;
        double fall = -potential_with(m) / (2 * shift);
        *at = kept - shift;
        fall += potential_with(m) / (2 * shift);
        *at = kept;
        REQUIRE(fabs(fall - force) < 1e-4 * (100 + fabs(force)),
                "a force of %g where the potential falls by %g", force, fall);
    }
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("MOLECULES_PER_SIDE", 7, 2, 100),
                                     NUMBER("STEPS", 40, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    per_side = parameters[0].value;
    count = per_side * per_side * per_side;
    box = per_side * SPACING;
    cutoff = fmin(box / 2, 9);
    edge_six = pow(SIGMA / cutoff, 6);
    molecules = allocate(count * sizeof *molecules);
    order = allocate(count * sizeof *order);
    double began = omp_get_wtime(), first = 0, last = 0;
    build();

    double built = omp_get_wtime();
#pragma omp parallel
    {
        forces();
        double energy = team_sum(my_energy());
#pragma omp master
        first = energy;
        for (size_t s = 0; s < parameters[1].value; s++) {
#pragma omp master
            if (s % 10 == 0)
                sort_by_place();
#pragma omp barrier
            step();
        }
        energy = team_sum(my_energy());
#pragma omp master
        last = energy;
    }
    print_result(last, built - began, omp_get_wtime() - built);

    double moving = kinetic(0, count), momentum = 0;
    for (size_t i = 0; i < count; i++)
        for (int s = 0; s < 3; s++)
            momentum += mass[s] * molecules[i].velocity[s][0];
    REQUIRE(fabs(last - first) < 0.02 * moving, "energy %g became %g, of which %g is kinetic",
            first, last, moving);
    check_forces();
    REQUIRE(fabs(momentum) < 1e-9 * count, "momentum %g", momentum);

    struct object objects[] = {{"molecules", molecules, count * sizeof *molecules},
                               {"order", order, count * sizeof *order}};
    PAUSE(objects);
}
