/* splash_mix: the three applications of Verghese's Splash workload in one process: Raytrace,
 * Volume rendering and Ocean share eight processors. Each application's number of processors changes
 * as the others come and go; Raytrace's is 8, 4, 3, 6 and 8.
 *
 * Access pattern, by construction: thread k of T takes the part of share k of the eight processors
 * (so one processor each with T = 8, for which nearpage or OMP_PLACES should pin threads). In each
 * phase the first processors run Raytrace, the next Volume rendering, the last Ocean. Within an
 * application the patterns are those of raytrace.c, volrend.c and ocean.c, with as many threads as
 * the application has processors:
 *   spheres, nodes                shared, read by Raytrace's processors
 *   densities, shades, largest    shared, read by Volume rendering's processors
 *   stream, vorticity, wind       block, moving: rows by the processors that Ocean has
 *   image, pixels                 tiles in turn
 * An application's first processor initialises its data when the application enters. With --mark the
 * stable phase begins after Raytrace, the first to enter, has initialised, and ends with the last turn. */
#include "nearpage.h"
#include "ocean.h"
#include "raytrace.h"
#include "volrend.h"

#define PROCESSORS 8

/* Processors of each application in each phase; Raytrace's are as in the paper. */
enum { RAYTRACE, VOLREND, OCEAN, APPLICATIONS };
static const int schedule[][APPLICATIONS] = {
    {8, 0, 0}, {4, 4, 0}, {3, 3, 2}, {6, 0, 2}, {8, 0, 0}};

static size_t spheres, tiles, blocks, side, marks;
static size_t done[APPLICATIONS]; /* frames, frames and steps */

static void enter(int application) {
    if (application == RAYTRACE)
        raytrace_build(spheres, tiles * RAYTRACE_TILE);
    else if (application == VOLREND)
        volrend_build(blocks * VOLREND_BLOCK);
    else
        ocean_build(side, 0);
}

/* Part k of n of a stage: a stage of Ocean's step, or one of OCEAN_STAGES parts of a frame. */
static void work(int application, size_t stage, int k, int n) {
    if (application == RAYTRACE)
        for (size_t tile = stage * n + k; tile < raytrace_tile_count(); tile += OCEAN_STAGES * n)
            raytrace_tile(done[RAYTRACE], tile);
    else if (application == VOLREND)
        volrend_tiles(done[VOLREND], stage * n + k, OCEAN_STAGES * n);
    else
        ocean_stage(done[OCEAN], stage, k, n);
}

/* The application of a processor; `place` is its number among the application's processors. */
static int assigned(const int *processors, int processor, int *place) {
    int application = RAYTRACE;
    for (*place = processor; *place >= processors[application]; application++)
        *place -= processors[application];
    return application;
}

static void run(size_t turns) {
    struct share mine = my_share(PROCESSORS);
    for (int phase = 0; phase < LENGTH(schedule); phase++) {
        const int *now = schedule[phase];
        int place;
        for (size_t p = mine.first; p < mine.end; p++) {
            int application = assigned(now, p, &place);
            if (!place && !done[application])
                enter(application);
        }
#pragma omp barrier
        if (marks && !phase) {
#pragma omp master
            nearpage_begin();
#pragma omp barrier
        }
        for (size_t turn = 0; turn < turns; turn++) {
            for (size_t stage = 0; stage < OCEAN_STAGES; stage++) {
                for (size_t p = mine.first; p < mine.end; p++) {
                    int application = assigned(now, p, &place);
                    work(application, stage, place, now[application]);
                }
#pragma omp barrier
            }
#pragma omp master
            {
                raytrace_add_frame();
                if (now[VOLREND])
                    volrend_add_frame();
                for (int application = 0; application < APPLICATIONS; application++)
                    done[application] += now[application] > 0;
            }
#pragma omp barrier
        }
    }
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("TURNS_PER_PHASE", 3, 1, 1000000000),
                                     NUMBER("SPHERES", 20000, 1, 1000000000),
                                     NUMBER("TILES_PER_SIDE", 16, 1, 4096),
                                     NUMBER("BLOCKS_PER_SIDE", 16, 2, 256),
                                     NUMBER("OCEAN_SIDE", 258, 4, 100000), FLAG("--mark")};
    READ_PARAMETERS(parameters);
    spheres = parameters[1].value;
    tiles = parameters[2].value;
    blocks = parameters[3].value;
    side = parameters[4].value;
    marks = parameters[5].value;
    double began = omp_get_wtime();
#pragma omp parallel
    run(parameters[0].value);
    if (marks)
        nearpage_end();
    double checksum = (double)tracer.checksum + (double)volume.checksum + ocean_checksum();
    print_result(checksum, 0, omp_get_wtime() - began);
    raytrace_check(done[RAYTRACE] - 1);
    volrend_check();
    ocean_check(done[OCEAN]);

    struct object objects[] = {RAYTRACE_OBJECTS, VOLREND_OBJECTS, OCEAN_OBJECTS};
    PAUSE(objects);
}
