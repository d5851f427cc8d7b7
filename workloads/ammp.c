/* ammp: molecular dynamics of chains, every atom an allocation of its own, in the manner of SPEC
 * OMP's ammp.
 *
 * Access pattern, by construction, with T threads:
 *   atom         irregular: about 1 KiB each; thread k reads and writes share k of T of the atoms,
 *                and reads the positions of atoms in their lists, which are near in space: some
 *                are neighbours in memory, most are anywhere
 *   neighbours   private: an atom's list of pointers, part of the atom, filled by its thread
 *                every ten steps
 *   atoms        shared: the table of all atoms, read
 *   cells        shared: the first atom in each cell of space; written by the master every ten
 *                steps, with the chains through the atoms, read by all
 * The master allocates and initialises all atoms. */
#include "workload.h"
#include <math.h>

#define CHAIN 20
#define CUTOFF 2.5
#define REACH 3.0 /* of the lists: half of what is beyond the cutoff may be walked in ten steps */
#define NEIGHBOURS 104
#define TIME_STEP 0.002
#define LIFETIME 10

/* Lengths, energies and masses in the units of the Lennard-Jones potential. */
struct atom {
    double position[3], velocity[3], force[3], listed_at[3];
    double potential;
    struct atom *before, *after; /* in the chain */
    struct atom *next_in_cell;
    uint32_t neighbour_count;
    struct atom *neighbours[NEIGHBOURS];
};

static size_t count, cells_per_side;
static double box;
static struct atom **atoms, **cells;

/* Chains start as straight lines along x on a lattice, in random order, so that neighbours in space
 * are seldom neighbours in memory. */
static void build(size_t chains_per_side) {
    size_t per_side = chains_per_side * CHAIN, chains = count / CHAIN;
    double spacing = box / per_side, total[3] = {0};
    uint64_t seed = random_seed(9);
    size_t *shuffled = allocate(chains * sizeof *shuffled);
    for (size_t i = 0; i < chains; i++) {
        size_t j = random_below(&seed, i + 1);
        shuffled[i] = shuffled[j];
        shuffled[j] = i;
    }
    for (size_t i = 0; i < count; i++) {
        struct atom *atom = atoms[i] = allocate(sizeof *atom);
        memset(atom, 0, sizeof *atom);
        size_t place = shuffled[i / CHAIN] * CHAIN + i % CHAIN;
        size_t lattice[3] = {place % per_side, place / per_side % per_side,
                             place / per_side / per_side};
        for (int d = 0; d < 3; d++) {
            atom->position[d] = (lattice[d] + 0.5) * spacing;
            atom->velocity[d] = 2 * unit(random_next(&seed)) - 1;
            total[d] += atom->velocity[d];
        }
        if (i % CHAIN) {
            atom->before = atoms[i - 1];
            atoms[i - 1]->after = atom;
        }
    }
    for (size_t i = 0; i < count; i++)
        for (int d = 0; d < 3; d++)
            atoms[i]->velocity[d] -= total[d] / count;
    free(shuffled);
}

static size_t cell_along(double position) {
    double share = position / box - floor(position / box);
    size_t cell = share * cells_per_side;
    return cell < cells_per_side ? cell : 0;
}

static void fill_cells(void) {
    size_t c = cells_per_side;
    memset(cells, 0, c * c * c * sizeof *cells);
    for (size_t i = count; i-- > 0;) {
        const double *p = atoms[i]->position;
        size_t cell = (cell_along(p[2]) * c + cell_along(p[1])) * c + cell_along(p[0]);
        atoms[i]->next_in_cell = cells[cell];
        cells[cell] = atoms[i];
    }
}

static inline double distance(const struct atom *a, const struct atom *b, double *along) {
    double square = 0;
    for (int d = 0; d < 3; d++) {
        along[d] = short_way(a->position[d] - b->position[d], box);
        square += along[d] * along[d];
    }
    return square;
}

static void list_neighbours(struct atom *atom) {
    size_t c = cells_per_side, at[3];
    double along[3];
    for (int d = 0; d < 3; d++)
        at[d] = cell_along(atom->position[d]) + c - 1;
    memcpy(atom->listed_at, atom->position, sizeof atom->listed_at);
    atom->neighbour_count = 0;
    for (size_t near = 0; near < 27; near++) {
        size_t x = (at[0] + near % 3) % c, y = (at[1] + near / 3 % 3) % c;
        size_t z = (at[2] + near / 9) % c;
        for (struct atom *other = cells[(z * c + y) * c + x]; other; other = other->next_in_cell) {
            if (other == atom || other == atom->before || other == atom->after ||
                distance(atom, other, along) > REACH * REACH)
                continue;
            if (atom->neighbour_count == NEIGHBOURS)
                die("an atom has more neighbours than its list holds");
            atom->neighbours[atom->neighbour_count++] = other;
        }
    }
}

/* Forces: springs to the chain's next atoms; Lennard-Jones, force-shifted, with listed atoms. */
static void feel(struct atom *atom) {
    double along[3];
    const double six_edge = pow(CUTOFF, -6);
    const double force_edge = 24 * (2 * six_edge * six_edge - six_edge) / CUTOFF;
    memset(atom->force, 0, sizeof atom->force);
    atom->potential = 0;
    struct atom *bonded[2] = {atom->before, atom->after};
    for (int b = 0; b < 2; b++)
        if (bonded[b]) {
            double r = sqrt(distance(atom, bonded[b], along)), pull = 200 * (r - 1.1);
            atom->potential += 0.25 * pull * (r - 1.1);
            for (int d = 0; d < 3; d++)
                atom->force[d] -= pull * along[d] / r;
        }
    for (uint32_t k = 0; k < atom->neighbour_count; k++) {
        double square = distance(atom, atom->neighbours[k], along);
        if (square >= CUTOFF * CUTOFF)
            continue;
        double r = sqrt(square), six = 1 / (square * square * square);
        double force = 24 * (2 * six * six - six) / r - force_edge;
        atom->potential += 2 * (six * six - six - six_edge * six_edge + six_edge) +
                           0.5 * force_edge * (r - CUTOFF);
        for (int d = 0; d < 3; d++)
            atom->force[d] += force * along[d] / r;
    }
}

static void move(struct atom *atom) {
    double walked = 0;
    for (int d = 0; d < 3; d++) {
        atom->velocity[d] += 0.5 * TIME_STEP * atom->force[d];
        atom->position[d] += TIME_STEP * atom->velocity[d];
        walked += pow(atom->position[d] - atom->listed_at[d], 2);
    }
    if (walked > (REACH - CUTOFF) * (REACH - CUTOFF) / 4)
        die("check failed: an atom has walked out of its list");
}

static void list_all(struct share mine) {
#pragma omp master
    fill_cells();
#pragma omp barrier
    for (size_t i = mine.first; i < mine.end; i++)
        list_neighbours(atoms[i]);
}

static double step(struct share mine, size_t time) {
    double energy = 0;
    for (size_t i = mine.first; i < mine.end; i++)
        move(atoms[i]);
#pragma omp barrier
    if (time % LIFETIME == 0)
        list_all(mine);
    for (size_t i = mine.first; i < mine.end; i++) {
        struct atom *atom = atoms[i];
        feel(atom);
        energy += atom->potential;
        for (int d = 0; d < 3; d++) {
            atom->velocity[d] += 0.5 * TIME_STEP * atom->force[d];
            energy += 0.5 * atom->velocity[d] * atom->velocity[d];
        }
    }
#pragma omp barrier
    return energy;
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("CHAINS_PER_SIDE", 1, 1, 50),
                                     NUMBER("STEPS", 30, 2, 1000000000)};
    READ_PARAMETERS(parameters);
    size_t per_side = parameters[0].value * CHAIN, steps = parameters[1].value;
    count = per_side * per_side * per_side;
    box = per_side * 1.1;
    cells_per_side = box / REACH;
    size_t table = cells_per_side * cells_per_side * cells_per_side;
    atoms = allocate(count * sizeof *atoms);
    cells = allocate(table * sizeof *cells);
    double began = omp_get_wtime(), early = 0, late = 0;
    build(parameters[0].value);

    double built = omp_get_wtime();
#pragma omp parallel
    {
        struct share mine = my_share(count);
        list_all(mine);
        for (size_t i = mine.first; i < mine.end; i++)
            feel(atoms[i]);
#pragma omp barrier
        for (size_t time = 1; time <= steps; time++) {
            double energy = team_sum(step(mine, time));
#pragma omp master
            {
                if (time == 1)
                    early = energy;
                late = energy;
            }
        }
    }
    print_result(late, built - began, omp_get_wtime() - built);
    double kinetic = 0, momentum = 0;
    for (size_t i = 0; i < count; i++)
        for (int d = 0; d < 3; d++) {
            kinetic += 0.5 * atoms[i]->velocity[d] * atoms[i]->velocity[d];
            momentum += atoms[i]->velocity[d];
        }
    REQUIRE(fabs(late - early) < 0.01 * kinetic, "energy %g became %g, of which %g is kinetic",
            early, late, kinetic);
    REQUIRE(fabs(momentum) < 1e-9 * count, "momentum %g", momentum);

    /* The first atom stands for all atoms. */
    struct object objects[] = {{"atom", atoms[0], sizeof **atoms},
                               {"atoms", atoms, count * sizeof *atoms},
                               {"cells", cells, table * sizeof *cells}};
    PAUSE(objects);
}
