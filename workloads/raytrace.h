/* Ray tracer with spheres, mirrors and shadows, for raytrace and splash_mix. */
#ifndef RAYTRACE_H
#define RAYTRACE_H

#include "workload.h"
#include <math.h>

#define RAYTRACE_TILE 8
#define RAYTRACE_LEAF 4
#define RAYTRACE_BOUNCES 3

struct vector {
    double x, y, z;
};

static inline struct vector along(struct vector a, double t, struct vector b) {
    return (struct vector){a.x + t * b.x, a.y + t * b.y, a.z + t * b.z};
}
static inline double dot(struct vector a, struct vector b) {
    return a.x * b.x + a.y * b.y + a.z * b.z;
}
static inline struct vector normal(struct vector a) {
    return along((struct vector){0, 0, 0}, 1 / sqrt(dot(a, a)), a);
}

struct sphere {
    struct vector centre;
    double radius, mirror, shade;
    uint64_t name[2];
};

/* A box, with either its spheres or its two halves: the next node, and the node `right`. */
struct node {
    struct vector low, high;
    uint32_t first, count, right, padding;
};

static struct {
    struct sphere *spheres;
    struct node *nodes;
    uint32_t *image; /* the latest frame, tile after tile */
    size_t sphere_count, node_count, side;
    uint64_t checksum;
} tracer;

/* As in SPLASH, one counter numbers all rays (primary, shadow and mirrored), and all threads write it. SPLASH uses a
 * lock; this is an atomic addition, because threads in emulation would wait for a lock in turns. */
static struct {
    _Alignas(64) atomic_ulong numbered;
    _Alignas(64) atomic_ulong traced;
} rays;

/* Rays that the thread has traced since it last added them to `rays.traced`. */
static _Thread_local uint64_t traced_here;

static void number_ray(void) {
    rays.numbered++;
    traced_here++;
}

static void add_up_rays(void) {
    rays.traced += traced_here;
    traced_here = 0;
}

static double coordinate(const struct sphere *s, int axis) {
    return axis == 0 ? s->centre.x : axis == 1 ? s->centre.y : s->centre.z;
}

/* Orders spheres so that none of the first `middle` lies beyond any of the others along an axis. */
static void split_spheres(struct sphere *spheres, size_t count, size_t middle, int axis) {
    size_t low = 0, high = count - 1;
    while (low < high) {
        double pivot = coordinate(&spheres[low + (high - low) / 2], axis);
        size_t left = low, right = high;
        for (;;) {
            while (coordinate(&spheres[left], axis) < pivot)
                left++;
            while (coordinate(&spheres[right], axis) > pivot)
                right--;
            if (left >= right)
                break;
            struct sphere swapped = spheres[left];
            spheres[left++] = spheres[right];
            spheres[right--] = swapped;
        }
        if (middle <= right)
            high = right;
        else
            low = right + 1;
    }
}

static uint32_t build_node(size_t first, size_t count, int axis) {
    uint32_t index = tracer.node_count++;
    struct node node = {.low = {1e30, 1e30, 1e30}, .high = {-1e30, -1e30, -1e30}};
    for (const struct sphere *s = tracer.spheres + first; s < tracer.spheres + first + count; s++) {
        node.low.x = fmin(node.low.x, s->centre.x - s->radius);
        node.low.y = fmin(node.low.y, s->centre.y - s->radius);
        node.low.z = fmin(node.low.z, s->centre.z - s->radius);
        node.high.x = fmax(node.high.x, s->centre.x + s->radius);
        node.high.y = fmax(node.high.y, s->centre.y + s->radius);
        node.high.z = fmax(node.high.z, s->centre.z + s->radius);
    }
    if (count <= RAYTRACE_LEAF) {
        node.first = first;
        node.count = count;
    } else {
        split_spheres(tracer.spheres + first, count, count / 2, axis);
        build_node(first, count / 2, (axis + 1) % 3);
        node.right = build_node(first + count / 2, count - count / 2, (axis + 1) % 3);
    }
    tracer.nodes[index] = node;
    return index;
}

/* Builds a cloud of spheres in the unit cube around the origin; images have `side` pixels squared. */
static void raytrace_build(size_t spheres, size_t side) {
    tracer.sphere_count = spheres;
    tracer.side = side;
    tracer.spheres = allocate(spheres * sizeof *tracer.spheres);
    tracer.nodes = allocate(2 * spheres * sizeof *tracer.nodes);
    tracer.image = allocate(side * side * sizeof *tracer.image);
    memset(tracer.image, 0, side * side * sizeof *tracer.image);
    uint64_t seed = random_seed(7);
    for (size_t i = 0; i < spheres; i++) {
        struct sphere *s = &tracer.spheres[i];
        s->centre.x = unit(random_next(&seed)) - 0.5;
        s->centre.y = unit(random_next(&seed)) - 0.5;
        s->centre.z = unit(random_next(&seed)) - 0.5;
        s->radius = (0.1 + 0.4 * unit(random_next(&seed))) / cbrt(spheres);
        s->mirror = i % 3 ? 0 : 0.8;
        s->shade = 0.3 + 0.7 * unit(random_next(&seed));
        s->name[0] = s->name[1] = i;
    }
    build_node(0, spheres, 0);
}

struct hit {
    double distance;
    const struct sphere *sphere;
};

static inline void meet(const struct sphere *s, struct vector from, struct vector way,
                        struct hit *hit) {
    struct vector to = along(s->centre, -1, from);
    double middle = dot(to, way), square = s->radius * s->radius - dot(to, to) + middle * middle;
    if (square < 0)
        return;
    double distance = middle - sqrt(square);
    if (distance > 1e-9 && distance < hit->distance)
        *hit = (struct hit){distance, s};
}

/* Plain comparisons, because fmin() and fmax() are function calls. */
static inline double less(double a, double b) { return a < b ? a : b; }
static inline double more(double a, double b) { return a < b ? b : a; }

static inline int passes(const struct node *n, struct vector from, struct vector over, double far) {
    double ax = (n->low.x - from.x) * over.x, bx = (n->high.x - from.x) * over.x;
    double ay = (n->low.y - from.y) * over.y, by = (n->high.y - from.y) * over.y;
    double az = (n->low.z - from.z) * over.z, bz = (n->high.z - from.z) * over.z;
    double in = more(more(less(ax, bx), less(ay, by)), less(az, bz));
    double out = less(less(more(ax, bx), more(ay, by)), more(az, bz));
    return in <= out && out > 0 && in < far;
}

static struct hit nearest(struct vector from, struct vector way) {
    struct hit hit = {INFINITY, NULL};
    struct vector over = {1 / way.x, 1 / way.y, 1 / way.z};
    uint32_t stack[64], depth = 0;
    stack[depth++] = 0;
    while (depth) {
        uint32_t index = stack[--depth];
        const struct node *node = &tracer.nodes[index];
        if (!passes(node, from, over, hit.distance))
            continue;
        for (uint32_t s = node->first; s < node->first + node->count; s++)
            meet(&tracer.spheres[s], from, way, &hit);
        if (!node->count) {
            stack[depth++] = node->right;
            stack[depth++] = index + 1;
        }
    }
    return hit;
}

static double brightness(struct vector from, struct vector way, int bounces) {
    static const struct vector light = {3, 5, 2};
    struct hit hit = nearest(from, way);
    if (!hit.sphere)
        return 0.2 + 0.2 * way.y;
    struct vector point = along(from, hit.distance, way);
    struct vector up = normal(along(point, -1, hit.sphere->centre));
    struct vector to_light = normal(along(light, -1, point));
    number_ray();
    double lit = dot(up, to_light), value = 0.1;
    if (lit > 0 && !nearest(along(point, 1e-6, up), to_light).sphere)
        value += 0.9 * lit * hit.sphere->shade;
    if (!bounces || !hit.sphere->mirror)
        return value;
    number_ray();
    struct vector mirrored = along(way, -2 * dot(way, up), up);
    return (1 - hit.sphere->mirror) * value +
           hit.sphere->mirror * brightness(along(point, 1e-6, up), mirrored, bounces - 1);
}

/* The ray of a pixel, from a camera that circles the scene once in 36 frames. */
static void ray(size_t frame, double x, double y, struct vector *from, struct vector *way) {
    double angle = 2 * M_PI * (frame % 36) / 36;
    struct vector right = {-sin(angle), 0, cos(angle)}, ahead = {-cos(angle), 0, -sin(angle)};
    *from = along((struct vector){0, 0, 0}, -1.5, ahead);
    *way = along(ahead, (2 * x / tracer.side - 1) * 0.6, right);
    way->y = (1 - 2 * y / tracer.side) * 0.6;
    *way = normal(*way);
}

static uint32_t raytrace_pixel(size_t frame, size_t tile, size_t pixel) {
    size_t row = tracer.side / RAYTRACE_TILE;
    struct vector from, way;
    ray(frame, tile % row * RAYTRACE_TILE + pixel % RAYTRACE_TILE + 0.5,
        tile / row * RAYTRACE_TILE + pixel / RAYTRACE_TILE + 0.5, &from, &way);
    number_ray();
    return brightness(from, way, RAYTRACE_BOUNCES) * 1e6;
}

static size_t raytrace_tile_count(void) {
    size_t row = tracer.side / RAYTRACE_TILE;
    return row * row;
}

static void raytrace_tile(size_t frame, size_t tile) {
    size_t pixels = RAYTRACE_TILE * RAYTRACE_TILE;
    for (size_t pixel = 0; pixel < pixels; pixel++)
        tracer.image[tile * pixels + pixel] = raytrace_pixel(frame, tile, pixel);
    add_up_rays();
}

/* Called by one thread when a frame is done. */
static void raytrace_add_frame(void) {
    for (size_t i = 0; i < tracer.side * tracer.side; i++)
        tracer.checksum += tracer.image[i];
}

/* Checks some rays against every sphere, without the tree, and that rays end on the spheres they hit.
 * Checks some pixels of the latest image, of frame `frame`. */
static void raytrace_check(size_t frame) {
    size_t found = 0, pixels = RAYTRACE_TILE * RAYTRACE_TILE;
    REQUIRE(rays.numbered == rays.traced, "%lu numbers for %lu rays", rays.numbered, rays.traced);
    for (size_t i = 0; i < 50; i++) {
        size_t at = random_at(~i) % (tracer.side * tracer.side);
        REQUIRE(tracer.image[at] == raytrace_pixel(frame, at / pixels, at % pixels),
                "pixel %zu was not rendered", at);
    }
    for (size_t i = 0; i < 200; i++) {
        struct vector from, way;
        double x = tracer.side * unit(random_at(2 * i));
        double y = tracer.side * unit(random_at(2 * i + 1));
        ray(i, x, y, &from, &way);
        struct hit by_tree = nearest(from, way), by_all = {INFINITY, NULL};
        for (size_t s = 0; s < tracer.sphere_count; s++)
            meet(&tracer.spheres[s], from, way, &by_all);
        REQUIRE(by_tree.sphere == by_all.sphere, "ray %zu hits another sphere by the tree", i);
        if (!by_all.sphere)
            continue;
        struct vector off = along(along(from, by_tree.distance, way), -1, by_all.sphere->centre);
        REQUIRE(fabs(sqrt(dot(off, off)) - by_all.sphere->radius) < 1e-9,
                "ray %zu does not end on the sphere it hits", i);
        found++;
    }
    REQUIRE(found, "no ray hits anything");
}

#define RAYTRACE_OBJECTS                                                                           \
    {"spheres", tracer.spheres, tracer.sphere_count * sizeof *tracer.spheres},                     \
        {"nodes", tracer.nodes, tracer.node_count * sizeof *tracer.nodes}, {                       \
        "image", tracer.image, tracer.side *tracer.side * sizeof *tracer.image                     \
    }

#endif
