/* faces: projects photographs onto a basis of features and recognises each as the nearest known person, as FaceRec does
 * (the engine of Colorado State University, with threads as in ALPBench).
 *
 * Access pattern, by construction, with T threads:
 *   basis     shared: all threads read all of it for every photograph; never written after the start
 *   gallery   block: thread k projects share k of T of the people; later all threads read all of it
 *   matches   block: written
 *   the current photograph is private
 * The master initialises only the basis. FaceRec's threads read photographs from files; here they generate them. */
#include "workload.h"
#include <math.h>

static size_t people, probes, pixels, features;
static double *basis, *gallery;
static uint32_t *matches;

static size_t person_of(size_t probe) { return random_at(~probe) % people; }

static void read_person(size_t person, double *photo) {
    for (size_t pixel = 0; pixel < pixels; pixel++)
        photo[pixel] = unit(random_at(person * pixels + pixel)) - 0.5;
}

/* Another photograph of a person: with noise of a third of the contrast. */
static void read_probe(size_t probe, double *photo) {
    read_person(person_of(probe), photo);
    for (size_t pixel = 0; pixel < pixels; pixel++)
        photo[pixel] += (unit(random_at((probe * pixels + pixel) | (size_t)1 << 61)) - 0.5) / 3;
}

/* Adds up in memory, as FaceRec does: the compiler can't tell that `into` is not among the operands. */
static void project(const double *photo, double *into) {
    for (size_t f = 0; f < features; f++) {
        const double *row = basis + f * pixels;
        into[f] = 0;
        for (size_t pixel = 0; pixel < pixels; pixel++)
            into[f] += row[pixel] * photo[pixel];
    }
}

static uint32_t nearest(const double *face, double *distance) {
    uint32_t best = 0;
    *distance = INFINITY;
    for (size_t person = 0; person < people; person++) {
        const double *known = gallery + person * features;
        double sum = 0;
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
        NUMBER("PEOPLE", 64, 2, 100000000), NUMBER("PHOTOS", 500, 1, 100000000),
        NUMBER("PIXELS", 4096, 256, 1000000), NUMBER("FEATURES", 128, 64, 100000)};
    READ_PARAMETERS(parameters);
    people = parameters[0].value;
    probes = parameters[1].value;
    pixels = parameters[2].value;
    features = parameters[3].value;
    basis = allocate(features * pixels * sizeof *basis);
    gallery = allocate(people * features * sizeof *gallery);
    matches = allocate(probes * sizeof *matches);
    double began = omp_get_wtime(), checksum = 0;
    for (size_t i = 0; i < features * pixels; i++)
        basis[i] = (random_at(i ^ (size_t)1 << 62) & 1 ? 1 : -1) / sqrt(pixels);

    double built = omp_get_wtime();
#pragma omp parallel
    {
        double *photo = allocate(pixels * sizeof *photo), *face = allocate(features * sizeof *face);
        double mine_sum = 0, distance;
        struct share known = my_share(people), mine = my_share(probes);
        for (size_t person = known.first; person < known.end; person++) {
            read_person(person, photo);
            project(photo, gallery + person * features);
        }
#pragma omp barrier
        for (size_t probe = mine.first; probe < mine.end; probe++) {
            read_probe(probe, photo);
            project(photo, face);
            matches[probe] = nearest(face, &distance);
            mine_sum += distance;
        }
        free(photo);
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
                               {"matches", matches, probes * sizeof *matches}};
    PAUSE(objects);
}
