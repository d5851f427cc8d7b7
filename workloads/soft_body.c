/* soft_body: a bar of soft tissue that is stretched and sheared in small steps, each solved for
 * equilibrium by finite elements and conjugate gradients, in the manner of PARSEC's facesim.
 *
 * Access pattern, by construction, with T threads; thread k has share k of T of the nodes:
 *   corners, rest      block: thread k reads its tetrahedra's (16 and 72 bytes each) in each step
 *   rotations, shapes, block: thread k stores its tetrahedra's in each step, and in each iteration
 *   responses          of the solver reads those of all that touch its nodes (72, 72, 120 bytes)
 *   positions          block, 24 bytes a node, and the nodes around; written in each step
 *   directions, forces, residuals, changes  the same, written in each iteration
 * Both threads read a tetrahedron at the border of their shares, so that one thread adds up each
 * node's force, in the same order with any number of threads.
 * The master allocates and initialises everything, as if it read the mesh from a file. */
#include "workload.h"
#include <math.h>

/* Iterations of the solver for each step. It begins with the last step's solution. */
#define ITERATIONS 20
/* The bar is as many times as long as it is wide. */
#define LENGTH_IN_WIDTHS 8
/* Tetrahedra that share a cube's diagonal, one for each order of the three axes. */
#define OF_A_CUBE 6
/* The material: Lame's constants. */
#define LAMBDA 1.0
#define MU 1.0

typedef double vector[3];
typedef double matrix[9]; /* row by row */

/* Along the principal axes: stresses, how they grow with stretches, and, for the axes 0 and 1, 0
 * and 2, 1 and 2, how shear stresses grow with shear and with turning. */
struct response {
    double stress[3], normal[6], shear[3], turn[3];
};

static size_t width, sides[3], count, tetrahedra; /* sides: nodes along x, y and z */
static uint32_t (*corners)[4];
static matrix *rest; /* inverse of the edges at rest */
/* In the current step: from principal axes to the world's, and `rest` times principal axes. */
static matrix *rotations, *shapes;
static struct response *responses;
static vector *positions, *forces, *residuals, *directions, *changes;

/* The node's place in the lattice along `axis`. */
static inline size_t place(size_t node, int axis) {
    size_t row = node / sides[0];
    return axis == 0 ? node % sides[0] : axis == 1 ? row % sides[1] : row / sides[1];
}

static inline int is_on_surface(size_t node) {
    for (int axis = 0; axis < 3; axis++)
        if (place(node, axis) == 0 || place(node, axis) == sides[axis] - 1)
            return 1;
    return 0;
}

/* Where a node is if the whole bar is stretched and sheared by `amount`. Such a bar is in
 * equilibrium everywhere, so that nodes within must come there when the surface is there. */
static inline void stretched(size_t node, double amount, vector out) {
    double x = place(node, 0), y = place(node, 1), z = place(node, 2);
    out[0] = x + amount * (0.5 * x + y);
    out[1] = y - amount * 0.25 * y;
    out[2] = z + amount * (0.5 * x + z);
}

static void build(void) {
    static const int AXES[OF_A_CUBE][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                           {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    size_t next[3] = {1, sides[0], sides[0] * sides[1]};
    for (size_t t = 0; t < tetrahedra; t++) {
        size_t cube = t / OF_A_CUBE, row = cube / width;
        size_t node = row / width * next[2] + row % width * next[1] + cube % width;
        const int *axes = AXES[t % OF_A_CUBE];
        memset(rest[t], 0, sizeof rest[t]);
        memset(rotations[t], 0, sizeof rotations[t]);
        memset(shapes[t], 0, sizeof shapes[t]);
        memset(&responses[t], 0, sizeof responses[t]);
        /* Edge e goes from corner 0 along the first e + 1 axes. So a step along an axis is the edge
         * that ends with this axis, less the edge before. */
        corners[t][0] = node;
        for (int e = 0; e < 3; e++) {
            corners[t][e + 1] = node += next[axes[e]];
            rest[t][3 * e + axes[e]] = 1;
            if (e < 2)
                rest[t][3 * e + axes[e + 1]] = -1;
        }
    }
    vector *of_nodes[] = {forces, residuals, directions, changes};
    for (size_t i = 0; i < count; i++) {
        stretched(i, 0, positions[i]);
        for (int v = 0; v < LENGTH(of_nodes); v++)
            memset(of_nodes[v][i], 0, sizeof(vector));
    }
}

static inline void multiply(const matrix a, const matrix b, matrix out) {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            out[3 * i + j] = a[3 * i] * b[j] + a[3 * i + 1] * b[3 + j] + a[3 * i + 2] * b[6 + j];
}

static inline void transpose(const matrix a, matrix out) {
    for (int i = 0; i < 9; i++)
        out[i] = a[i % 3 * 3 + i / 3];
}

/* out = the tetrahedron's edges between the vectors of its nodes, as columns, times `shape`. */
static inline void gradient(const uint32_t *nodes, const vector *of, const matrix shape,
                            matrix out) {
    matrix edges;
    for (int e = 0; e < 3; e++)
        for (int d = 0; d < 3; d++)
            edges[3 * d + e] = of[nodes[e + 1]][d] - of[nodes[0]][d];
    multiply(edges, shape, out);
}

/* Principal axes of the symmetric matrix `a` as columns of `axes`, by Jacobi's rotations. */
static void find_axes(matrix a, matrix axes) {
    static const int PAIRS[3][2] = {{0, 1}, {0, 2}, {1, 2}};
    for (int i = 0; i < 9; i++)
        axes[i] = i % 4 == 0;
    for (int turn = 0; turn < 24; turn++) {
        int p = PAIRS[turn % 3][0], q = PAIRS[turn % 3][1];
        if (fabs(a[3 * p + q]) < 1e-15)
            continue;
        double angle = 0.5 * atan2(2 * a[3 * p + q], a[3 * q + q] - a[3 * p + p]);
        double c = cos(angle), s = sin(angle);
        for (int i = 0; i < 3; i++) {
            double x = a[3 * i + p], y = a[3 * i + q], u = axes[3 * i + p], v = axes[3 * i + q];
            a[3 * i + p] = c * x - s * y, a[3 * i + q] = s * x + c * y;
            axes[3 * i + p] = c * u - s * v, axes[3 * i + q] = s * u + c * v;
        }
        for (int i = 0; i < 3; i++) {
            double x = a[3 * p + i], y = a[3 * q + i];
            a[3 * p + i] = c * x - s * y, a[3 * q + i] = s * x + c * y;
        }
    }
}

/* Stores the state of tetrahedron `t` at its nodes' positions. The gradient's singular values are
 * the stretches along the principal axes; the material is linear in them. */
static void update(size_t t) {
    struct response *response = &responses[t];
    matrix now, transposed, square, axes, turned;
    gradient(corners[t], (const vector *)positions, rest[t], now);
    transpose(now, transposed);
    multiply(transposed, now, square);
    find_axes(square, axes);
    multiply(rest[t], axes, shapes[t]);
    multiply(now, axes, turned);
    double stretches[3], all = -3;
    for (int i = 0; i < 3; i++) {
        double x = turned[i], y = turned[3 + i], z = turned[6 + i];
        stretches[i] = sqrt(x * x + y * y + z * z);
        all += stretches[i];
        for (int d = 0; d < 3; d++)
            rotations[t][3 * d + i] = turned[3 * d + i] / stretches[i];
    }
    for (int i = 0; i < 3; i++) {
        response->stress[i] = 2 * MU * (stretches[i] - 1) + LAMBDA * all;
        response->normal[i] = LAMBDA + 2 * MU;
        response->normal[3 + i] = LAMBDA;
        response->shear[i] = 2 * MU;
    }
    for (int i = 0; i < 3; i++) {
        int p = i == 2, q = i == 0 ? 1 : 2;
        double turn = (response->stress[p] + response->stress[q]) / (stretches[p] + stretches[q]);
        /* What is compressed may buckle: with less the solver would have no minimum to find. */
        response->turn[i] = fmax(turn, 0);
    }
}

/* Adds the forces of tetrahedron `t` under stresses along its principal axes to nodes in `mine`. */
static inline void pull(size_t t, const matrix stresses, struct share mine) {
    matrix across, transposed, pulled;
    multiply(rotations[t], stresses, across);
    transpose(shapes[t], transposed);
    multiply(across, transposed, pulled);
    /* A cube's sixth; the forces on all four corners are in balance. */
    vector rest_of_it = {0};
    for (int e = 3; e >= 0; e--) {
        size_t node = corners[t][e];
        int is_mine = node >= mine.first && node < mine.end;
        for (int d = 0; d < 3; d++) {
            double force = e ? -pulled[3 * d + e - 1] / 6 : -rest_of_it[d];
            rest_of_it[d] += force;
            if (is_mine)
                forces[node][d] += force;
        }
    }
}

/* out = how stresses along the principal axes change with the gradient `by` along them. */
static inline void respond(const struct response *m, const matrix by, matrix out) {
    out[0] = m->normal[0] * by[0] + m->normal[3] * by[4] + m->normal[4] * by[8];
    out[4] = m->normal[3] * by[0] + m->normal[1] * by[4] + m->normal[5] * by[8];
    out[8] = m->normal[4] * by[0] + m->normal[5] * by[4] + m->normal[2] * by[8];
    for (int i = 0; i < 3; i++) {
        static const int UPPER[3] = {1, 2, 5}, LOWER[3] = {3, 6, 7};
        double shear = m->shear[i] * (by[UPPER[i]] + by[LOWER[i]]) / 2;
        double turn = m->turn[i] * (by[UPPER[i]] - by[LOWER[i]]) / 2;
        out[UPPER[i]] = shear + turn;
        out[LOWER[i]] = shear - turn;
    }
}

static void clear_forces(struct share mine) {
    for (size_t i = mine.first; i < mine.end; i++)
        memset(forces[i], 0, sizeof forces[i]);
}

/* How forces on own nodes change when all nodes move along `directions`. */
static void add_differentials(struct share mine, struct share around) {
    clear_forces(mine);
    for (size_t t = around.first; t < around.end; t++) {
        matrix change, inverse, along, stresses;
        gradient(corners[t], (const vector *)directions, shapes[t], change);
        transpose(rotations[t], inverse);
        multiply(inverse, change, along);
        respond(&responses[t], along, stresses);
        pull(t, stresses, mine);
    }
}

/* The number of tetrahedra that begin at nodes before `node`. */
static size_t beginning_before(size_t node) {
    size_t x = place(node, 0), y = place(node, 1), z = place(node, 2);
    if (z == sides[2] - 1 || node == count)
        return tetrahedra;
    return ((z * width + y) * width + (y < width ? x : 0)) * OF_A_CUBE;
}

/* The tetrahedra that begin at `nodes`. */
static struct share beginning_at(struct share nodes) {
    return (struct share){beginning_before(nodes.first), beginning_before(nodes.end)};
}

/* Those that touch `nodes`: the farthest corner of a tetrahedron is across its cube. */
static struct share touching(struct share nodes) {
    size_t across = (sides[1] + 1) * sides[0] + 1;
    nodes.first = nodes.first > across ? nodes.first - across : 0;
    return beginning_at(nodes);
}

static double product(struct share mine, vector *a, vector *b) {
    double sum = 0;
    for (size_t i = mine.first; i < mine.end; i++)
        sum += a[i][0] * b[i][0] + a[i][1] * b[i][1] + a[i][2] * b[i][2];
    return team_sum(sum);
}

/* Conjugate gradients on the nodes within; the surface is held. */
static void solve(struct share mine, struct share around) {
    for (size_t i = mine.first; i < mine.end; i++)
        for (int d = 0; d < 3; d++) {
            changes[i][d] = 0;
            directions[i][d] = residuals[i][d] = is_on_surface(i) ? 0 : forces[i][d];
        }
    double squared = product(mine, residuals, residuals);
    for (int iteration = 0; iteration < ITERATIONS && squared > 1e-30; iteration++) {
        add_differentials(mine, around);
        for (size_t i = mine.first; i < mine.end; i++)
            if (is_on_surface(i))
                memset(forces[i], 0, sizeof forces[i]);
        double along = -squared / product(mine, directions, forces), next = 0;
        for (size_t i = mine.first; i < mine.end; i++)
            for (int d = 0; d < 3; d++) {
                changes[i][d] += along * directions[i][d];
                residuals[i][d] += along * forces[i][d];
                next += residuals[i][d] * residuals[i][d];
            }
        next = team_sum(next);
        for (size_t i = mine.first; i < mine.end; i++)
            for (int d = 0; d < 3; d++)
                directions[i][d] = residuals[i][d] + next / squared * directions[i][d];
        squared = next;
#pragma omp barrier
    }
    for (size_t i = mine.first; i < mine.end; i++)
        for (int d = 0; d < 3; d++)
            positions[i][d] += changes[i][d];
}

/* Moves the surface to where it is stretched by `amount`; nodes within follow by one step of
 * Newton's method. */
static void step(struct share mine, struct share around, double amount) {
    for (size_t i = mine.first; i < mine.end; i++)
        if (is_on_surface(i))
            stretched(i, amount, positions[i]);
#pragma omp barrier
    struct share own = beginning_at(mine);
    for (size_t t = own.first; t < own.end; t++)
        update(t);
#pragma omp barrier
    clear_forces(mine);
    for (size_t t = around.first; t < around.end; t++) {
        matrix stresses = {0};
        for (int i = 0; i < 3; i++)
            stresses[4 * i] = responses[t].stress[i];
        pull(t, stresses, mine);
    }
    solve(mine, around);
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("CUBES_ACROSS", 10, 2, 500),
                                     NUMBER("STEPS", 16, 4, 1000000000)};
    READ_PARAMETERS(parameters);
    width = parameters[0].value;
    size_t steps = parameters[1].value;
    sides[0] = sides[1] = width + 1;
    sides[2] = width * LENGTH_IN_WIDTHS + 1;
    count = sides[0] * sides[1] * sides[2];
    tetrahedra = width * width * width * LENGTH_IN_WIDTHS * OF_A_CUBE;
    double began = omp_get_wtime();
    corners = allocate(tetrahedra * sizeof *corners);
    rest = allocate(tetrahedra * sizeof *rest);
    rotations = allocate(tetrahedra * sizeof *rotations);
    shapes = allocate(tetrahedra * sizeof *shapes);
    responses = allocate(tetrahedra * sizeof *responses);
    vector **of_nodes[] = {&positions, &forces, &residuals, &directions, &changes};
    for (int v = 0; v < LENGTH(of_nodes); v++)
        *of_nodes[v] = allocate(count * sizeof(vector));
    build();

    double built = omp_get_wtime(), amount = 0.05;
#pragma omp parallel
    {
        struct share mine = my_share(count), around = touching(mine);
        /* The last quarter of the steps holds still, so that nodes within can follow. */
        size_t moving = steps - steps / 4;
        for (size_t time = 1; time <= steps; time++)
            step(mine, around, time < moving ? amount * time / moving : amount);
    }
    double computed = omp_get_wtime(), worst = 0, far = 0, sum = 0;
    for (size_t i = 0; i < count; i++) {
        vector there;
        stretched(i, amount, there);
        for (int d = 0; d < 3; d++) {
            worst = fmax(worst, fabs(positions[i][d] - there[d]));
            far = fmax(far, fabs(there[d] - place(i, d)));
            sum += positions[i][d] * (d + 1);
        }
    }
    print_result(sum, built - began, computed - built);
    REQUIRE(worst < 0.01 * far, "nodes that moved by up to %g are up to %g from equilibrium", far,
            worst);

    struct object objects[] = {{"corners", corners, tetrahedra * sizeof *corners},
                               {"rest", rest, tetrahedra * sizeof *rest},
                               {"rotations", rotations, tetrahedra * sizeof *rotations},
                               {"shapes", shapes, tetrahedra * sizeof *shapes},
                               {"responses", responses, tetrahedra * sizeof *responses},
                               {"positions", positions, count * sizeof *positions},
                               {"directions", directions, count * sizeof *directions}};
    PAUSE(objects);
}
