/* faces: photographs recognised by their projection into a space of features and the nearest of a
 * gallery there, as FaceRec does it.
 *
 * Access pattern, by construction, with T threads:
 *   basis     shared: read from end to end by all for every photograph, never written
 *   gallery   shared: likewise, never written once it is there
 *   photos    block: thread k reads share k of T
 *   matches   block: written
 * The master initialises everything, the gallery included. */
#include "workload.h"
#include <math.h>

static size_t people, probes, pixels, features;
static float *basis, *gallery, *photos;
static uint32_t *matches;

static double person_pixel(size_t person, size_t pixel) {
    return unit(random_at(person * pixels + pixel)) - 0.5;
}

static size_t person_of(size_t probe) { return random_at(~probe) % people; }

static void project(const float *photo, float *into) {
    for (size_t f = 0; f < features; f++) {
        float sum = 0;
        for (size_t pixel = 0; pixel < pixels; pixel++)
            sum += basis[f * pixels + pixel] * photo[pixel];
        into[f] = sum;
    }
}

static void build(void) {
    for (size_t i = 0; i < features * pixels; i++)
        basis[i] = (random_at(i ^ (size_t)1 << 62) & 1 ? 1 : -1) / sqrt(pixels);
    float *photo = allocate(pixels * sizeof *photo);
    for (size_t person = 0; person < people; person++) {
        for (size_t pixel = 0; pixel < pixels; pixel++)
            photo[pixel] = person_pixel(person, pixel);
        project(photo, gallery + person * features);
    }
    free(photo);
    /* The same people on another day: noise of a third of the contrast. */
    for (size_t probe = 0; probe < probes; probe++) {
        matches[probe] = UINT32_MAX;
        for (size_t pixel = 0; pixel < pixels; pixel++) {
            double noise = unit(random_at((probe * pixels + pixel) | (size_t)1 << 61)) - 0.5;
            photos[probe * pixels + pixel] = person_pixel(person_of(probe), pixel) + noise / 3;
        }
    }
}

static uint32_t nearest(const float *face, double *distance) {
    uint32_t best = 0;
    *distance = INFINITY;
    for (size_t person = 0; person < people; person++) {
        const float *known = gallery + person * features;
        float sum = 0;
        for (size_t f = 0; f < features; f++)
            sum += (known[f] - face[f]) * (known[f] - face[f]);
        if (sum < *distance) {
            *distance = sum;
            best = person;
        }
    }
    return best;
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {
        NUMBER("PEOPLE", 8000, 2, 100000000), NUMBER("PHOTOS", 500, 1, 100000000),
        NUMBER("PIXELS", 256, 256, 1000000), NUMBER("FEATURES", 128, 64, 100000)};
    READ_PARAMETERS(parameters);
    people = parameters[0].value;
    probes = parameters[1].value;
    pixels = parameters[2].value;
    features = parameters[3].value;
    basis = allocate(features * pixels * sizeof *basis);
    gallery = allocate(people * features * sizeof *gallery);
    photos = allocate(probes * pixels * sizeof *photos);
    matches = allocate(probes * sizeof *matches);
    double began = omp_get_wtime(), checksum = 0;
    build();

    double built = omp_get_wtime();
#pragma omp parallel
    {
        struct share mine = my_share(probes);
        float *face = allocate(features * sizeof *face);
        double mine_sum = 0;
        for (size_t probe = mine.first; probe < mine.end; probe++) {
            double distance;
            project(photos + probe * pixels, face);
            matches[probe] = nearest(face, &distance);
            mine_sum += distance;
        }
        free(face);
        double sum = team_sum(mine_sum);
#pragma omp master
        checksum = sum;
    }
    print_result(checksum, built - began, omp_get_wtime() - built);
    size_t right = 0;
    for (size_t probe = 0; probe < probes; probe++)
        right += matches[probe] == person_of(probe);
    REQUIRE(right >= probes * 0.98, "only %zu of %zu faces recognised", right, probes);

    struct object objects[] = {{"basis", basis, features * pixels * sizeof *basis},
                               {"gallery", gallery, people * features * sizeof *gallery},
                               {"photos", photos, probes * pixels * sizeof *photos},
                               {"matches", matches, probes * sizeof *matches}};
    PAUSE(objects);
}
