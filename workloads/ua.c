/* ua: heat around a moving source, on an unstructured mesh of cubes that is adapted to the source
 * from time to time, in the manner of NPB UA.
 *
 * Access pattern, by construction, with T threads; elements are in the order of their place along a
 * space-filling curve, and their number depends on the source's place:
 *   heat, heat_next   block: thread k reads and writes share k of T of the elements in use, and
 *                     gathers their neighbours' heat, through an index
 *   starts, faces     block: neighbours of the elements; written when the mesh changes, then
 *                     read only
 *   elements, former  shared: this mesh and the one before; written by the master when the mesh
 *                     changes, then searched by all
 * The arrays are allocated once, for the largest number of elements. After an adaptation, a thread's
 * share has other elements than before.
 * The master initialises everything. */
#include "workload.h"
#include <math.h>

/* Coordinates and sizes in units of the finest element. */
struct element {
    uint64_t key; /* along the curve, of its first corner */
    uint16_t corner[3], size;
};

struct face {
    uint32_t other;
    float conductance;
};

static size_t finest, resolution, capacity, count, former_count, meshes;
static struct element *elements, *former;
static double *heat, *heat_next;
static uint64_t *starts, *team_faces; /* how many each thread has */
static struct face *faces;
static size_t face_capacity;

/* Spreads the bits of x to every third bit. */
static uint64_t spread(uint64_t x) {
    x = (x | x << 16) & 0x0000FF0000FF;
    x = (x | x << 8) & 0x00F00F00F00F;
    x = (x | x << 4) & 0x0C30C30C30C3;
    return (x | x << 2) & 0x249249249249;
}

static uint64_t key_of(size_t x, size_t y, size_t z) {
    return spread(x) | spread(y) << 1 | spread(z) << 2;
}

/* The source circles the centre of the cube. */
static void source(size_t step, double *at) {
    double angle = 2 * M_PI * step / 200;
    at[0] = finest * (0.5 + 0.25 * cos(angle));
    at[1] = finest * (0.5 + 0.25 * sin(angle));
    at[2] = finest * 0.5;
}

/* Halves an element while its distance from the source is less than `resolution` times its size. */
static void divide(const double *at, size_t x, size_t y, size_t z, size_t size) {
    double half = size / 2.0, dx = x + half - at[0], dy = y + half - at[1], dz = z + half - at[2];
    if (size > 1 && (double)resolution * size > sqrt(dx * dx + dy * dy + dz * dz)) {
        for (size_t part = 0; part < 8; part++)
            divide(at, x + (part & 1) * size / 2, y + (part >> 1 & 1) * size / 2,
                   z + (part >> 2) * size / 2, size / 2);
        return;
    }
    if (count == capacity)
        die("more elements than there is room for");
    elements[count++] = (struct element){key_of(x, y, z), {x, y, z}, size};
}

/* The element of a list that holds a key. */
static size_t find(const struct element *list, size_t length, uint64_t key) {
    size_t low = 0, high = length;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        *(list[middle].key <= key ? &low : &high) = middle;
    }
    return low;
}

static double volume(const struct element *e) { return (double)e->size * e->size * e->size; }

/* Heat of new elements from the old: the mean of the parts, or the value of the whole. */
static void carry_over(struct share mine) {
    for (size_t i = mine.first; i < mine.end; i++) {
        size_t j = find(former, former_count, elements[i].key);
        if (former[j].size >= elements[i].size) {
            heat_next[i] = heat[j];
            continue;
        }
        uint64_t end = elements[i].key + (uint64_t)volume(&elements[i]);
        double sum = 0;
        for (; j < former_count && former[j].key < end; j++)
            sum += heat[j] * volume(&former[j]);
        heat_next[i] = sum / volume(&elements[i]);
    }
}

/* Finds the faces of element `i` in the square of `size` at `at`, just outside of the element: one face
 * with the element there, or, if that element is smaller, faces in each quarter of the square. Writes
 * them to `into` unless it is null, and returns their number. */
static size_t find_faces(size_t i, const size_t *at, int axis, size_t size, struct face *into) {
    size_t other = find(elements, count, key_of(at[0], at[1], at[2])), found = 0;
    if (elements[other].size >= size) {
        float distance = 0.5f * (elements[i].size + elements[other].size);
        if (into)
            *into = (struct face){other, (float)size * size / distance};
        return 1;
    }
    for (size_t quarter = 0; quarter < 4; quarter++) {
        size_t corner[3] = {at[0], at[1], at[2]};
        corner[(axis + 1) % 3] += (quarter & 1) * size / 2;
        corner[(axis + 2) % 3] += (quarter >> 1) * size / 2;
        found += find_faces(i, corner, axis, size / 2, into ? into + found : NULL);
    }
    return found;
}

static size_t all_faces(size_t i, struct face *into) {
    const struct element *e = &elements[i];
    size_t found = 0;
    for (int side = 0; side < 6; side++) {
        size_t at[3] = {e->corner[0], e->corner[1], e->corner[2]};
        at[side / 2] += side % 2 ? e->size : -1;
        if (at[side / 2] < finest)
            found += find_faces(i, at, side / 2, e->size, into ? into + found : NULL);
    }
    return found;
}

static void connect(struct share mine) {
    int me = omp_get_thread_num();
    team_faces[me] = 0;
    for (size_t i = mine.first; i < mine.end; i++)
        team_faces[me] += starts[i + 1] = all_faces(i, NULL);
#pragma omp barrier
    uint64_t next = 0;
    for (int t = 0; t < me; t++)
        next += team_faces[t];
    if (next + team_faces[me] > face_capacity)
        die("more faces than there is room for");
    for (size_t i = mine.first; i < mine.end; i++) {
        all_faces(i, faces + next);
        starts[i + 1] = next += starts[i + 1];
    }
}

/* Called by the whole team. */
static void adapt(size_t step) {
#pragma omp master
    {
        double at[3];
        struct element *kept = elements;
        elements = former;
        former = kept;
        former_count = count;
        count = starts[0] = 0;
        source(step, at);
        divide(at, 0, 0, 0, finest);
        meshes++;
    }
#pragma omp barrier
    struct share mine = my_share(count);
    if (former_count)
        carry_over(mine);
    connect(mine);
#pragma omp barrier
    for (size_t i = mine.first; i < mine.end; i++)
        heat[i] = former_count ? heat_next[i] : 0;
#pragma omp barrier
}

/* An explicit step, short enough that no element loses all its heat. */
static void diffuse(size_t hot) {
    struct share mine = my_share(count);
    for (size_t i = mine.first; i < mine.end; i++) {
        double flow = i == hot ? 1 : 0;
        for (uint64_t f = starts[i]; f < starts[i + 1]; f++)
            flow += 0.05 * faces[f].conductance * (heat[faces[f].other] - heat[i]);
        heat_next[i] = heat[i] + flow / volume(&elements[i]);
    }
#pragma omp barrier
#pragma omp master
    {
        double *kept = heat;
        heat = heat_next;
        heat_next = kept;
    }
#pragma omp barrier
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("LEVELS", 7, 2, 12), NUMBER("RESOLUTION", 6, 2, 30),
                                     NUMBER("STEPS", 100, 1, 1000000000),
                                     NUMBER("STEPS_PER_MESH", 10, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    size_t steps = parameters[2].value, every = parameters[3].value;
    finest = (size_t)1 << parameters[0].value;
    resolution = parameters[1].value;
    /* Elements of a level fill a shell around the source: up to 30 resolution^3 elements. */
    capacity = 50 * resolution * resolution * resolution * parameters[0].value;
    face_capacity = 8 * capacity;
    elements = allocate(capacity * sizeof *elements);
    former = allocate(capacity * sizeof *former);
    heat = allocate(capacity * sizeof *heat);
    heat_next = allocate(capacity * sizeof *heat_next);
    starts = allocate((capacity + 1) * sizeof *starts);
    faces = allocate(face_capacity * sizeof *faces);
    team_faces = allocate(omp_get_max_threads() * sizeof *team_faces);
    memset(elements, 0, capacity * sizeof *elements);
    memset(former, 0, capacity * sizeof *former);
    memset(heat, 0, capacity * sizeof *heat);
    memset(heat_next, 0, capacity * sizeof *heat_next);
    memset(starts, 0, (capacity + 1) * sizeof *starts);
    memset(faces, 0, face_capacity * sizeof *faces);

    double began = omp_get_wtime();
    size_t hot = 0;
#pragma omp parallel
    for (size_t step = 0; step < steps; step++) {
        if (step % every == 0)
            adapt(step);
#pragma omp master
        {
            double at[3];
            source(step, at);
            hot = find(elements, count, key_of(at[0], at[1], at[2]));
        }
#pragma omp barrier
        diffuse(hot);
    }
    double computed = omp_get_wtime(), total = 0, filled = 0, checksum = 0, least = 0;
    for (size_t i = 0; i < count; i++) {
        total += heat[i] * volume(&elements[i]);
        filled += volume(&elements[i]);
        checksum += heat[i] * (i % 1000 + 1);
        least = fmin(least, heat[i]);
    }
    print_result(checksum, 0, computed - began);
    REQUIRE(filled == pow(finest, 3), "the mesh fills %g of %g", filled, pow(finest, 3));
    REQUIRE(fabs(total / steps - 1) < 1e-9, "%zu units of heat became %g", steps, total);
    REQUIRE(least >= 0, "an element is colder than at the start: %g", least);

    struct object objects[] = {{"elements", elements, capacity * sizeof *elements},
                               {"former", former, capacity * sizeof *former},
                               {"heat", heat, capacity * sizeof *heat},
                               {"heat_next", heat_next, capacity * sizeof *heat_next},
                               {"starts", starts, (capacity + 1) * sizeof *starts},
                               {"faces", faces, face_capacity * sizeof *faces}};
    PAUSE(objects);
}
