/* pca: the means of the rows of a matrix of integers, and the covariance of every pair of rows, by map, reduce and
 * merge, as in Metis's PCA (which also ends there, without a principal component).
 *
 * Access pattern, by construction, with T threads:
 *   matrix      shared: an allocation for each row; a thread reads both rows of its current pair; never written after
 *               the start
 *   means       block: thread k writes share k of T; all threads read all of it
 *   pairs       the tasks, a cache line each, in 16 runs for each thread; a thread takes the next run when it is done
 *   results     private: for each pair its key (a cache line) and its value, both allocated by the thread that computed
 *               them; in the thread's own table of buckets, a tenth as many as pairs; buckets are sorted
 *   reduced     private: the results of the buckets that a thread takes from all tables, sorted by their keys
 *   covariance  block: thread k merges share k of T from the sorted results of all threads
 * The master initialises the matrix and lists the pairs. Metis has trees as buckets, and shares by samples of keys. */
#include "workload.h"

enum { TASKS_PER_THREAD = 16, PAIRS_PER_BUCKET = 10 };

/* As large as a cache line, as in Metis. */
struct pair {
    uint32_t row, other, unused[14];
};

struct result {
    struct pair *key;
    int32_t *value;
};

struct list {
    struct result *results;
    size_t count, room;
};

static size_t rows, columns, pair_count, buckets;
static int32_t **matrix, *means;
static struct pair *pairs;
/* Each thread's table of buckets, and its reduced results. */
static struct list *tables, *reduced;
static struct result *covariance;
static atomic_size_t next_run, next_bucket;

static void fill(void) {
    for (size_t row = 0; row < rows; row++) {
        matrix[row] = allocate(columns * sizeof **matrix);
        for (size_t column = 0; column < columns; column++)
            matrix[row][column] = random_at(row * columns + column) % 100;
    }
}

static void list_pairs(void) {
    struct pair *next = pairs;
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t other = row; other < rows; other++)
            *next++ = (struct pair){.row = row, .other = other};
}

static size_t place_of(const struct pair *pair) {
    return pair->row * (2 * rows - pair->row + 1) / 2 + pair->other - pair->row;
}

static void average(void) {
    struct share mine = my_share(rows);
    for (size_t row = mine.first; row < mine.end; row++) {
        int64_t sum = 0;
        for (size_t column = 0; column < columns; column++)
            sum += matrix[row][column];
        means[row] = sum / (int64_t)columns;
    }
#pragma omp barrier
}

static int compare_keys(const struct pair *a, const struct pair *b) {
    if (a->row != b->row)
        return a->row < b->row ? -1 : 1;
    return (a->other > b->other) - (a->other < b->other);
}

static int compare_results(const void *a, const void *b) {
    return compare_keys(((const struct result *)a)->key, ((const struct result *)b)->key);
}

/* Position of a key in a sorted list, or the position to insert it at. */
static size_t find(const struct list *list, const struct pair *key) {
    size_t first = 0, end = list->count;
    while (first < end) {
        size_t middle = (first + end) / 2;
        if (compare_keys(list->results[middle].key, key) < 0)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

static void insert(struct list *list, size_t at, struct result result) {
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 4;
        list->results = realloc(list->results, list->room * sizeof result);
        if (!list->results)
            die("out of memory");
    }
    memmove(&list->results[at + 1], &list->results[at], (list->count - at) * sizeof result);
    list->results[at] = result;
    list->count++;
}

static void emit(struct list *table, const struct pair *pair, int32_t value) {
    struct result result = {allocate(sizeof *result.key), allocate(sizeof *result.value)};
    *result.key = *pair;
    *result.value = value;
    struct list *bucket = &table[random_at(place_of(pair)) % buckets];
    insert(bucket, find(bucket, pair), result);
}

static int32_t covary(const int32_t *a, const int32_t *b, int32_t mean_a, int32_t mean_b) {
    int32_t sum = 0;
    for (size_t column = 0; column < columns; column++)
        sum += (a[column] - mean_a) * (b[column] - mean_b);
    return sum / (int32_t)(columns - 1);
}

static void map(void) {
    struct list *table = tables + omp_get_thread_num() * buckets;
    size_t run, runs = (size_t)omp_get_num_threads() * TASKS_PER_THREAD;
    while ((run = next_run++) < runs) {
        struct share task = share_of(pair_count, run, runs);
        for (size_t i = task.first; i < task.end; i++) {
            uint32_t row = pairs[i].row, other = pairs[i].other;
            emit(table, &pairs[i], covary(matrix[row], matrix[other], means[row], means[other]));
        }
    }
#pragma omp barrier
}

static void reduce(void) {
    struct list *mine = &reduced[omp_get_thread_num()];
    size_t bucket;
    while ((bucket = next_bucket++) < buckets)
        for (int thread = 0; thread < omp_get_num_threads(); thread++) {
            const struct list *list = &tables[thread * buckets + bucket];
            for (size_t i = 0; i < list->count; i++)
                insert(mine, mine->count, list->results[i]);
        }
    if (mine->count)
        qsort(mine->results, mine->count, sizeof *mine->results, compare_results);
#pragma omp barrier
}

static void merge(void) {
    struct share mine = my_share(pair_count);
    for (int thread = 0; mine.first < mine.end && thread < omp_get_num_threads(); thread++) {
        const struct list *list = &reduced[thread];
        for (size_t i = find(list, &pairs[mine.first]); i < list->count; i++) {
            size_t place = place_of(list->results[i].key);
            if (place >= mine.end)
                break;
            covariance[place] = list->results[i];
        }
    }
#pragma omp barrier
}

/* The covariance by other sums: of the products and of each row. */
static int32_t expected(const struct pair *pair) {
    int64_t a = 0, b = 0, ab = 0, mean_a = means[pair->row], mean_b = means[pair->other];
    for (size_t column = 0; column < columns; column++) {
        int64_t x = matrix[pair->row][column], y = matrix[pair->other][column];
        a += x;
        b += y;
        ab += x * y;
    }
    return (ab - mean_b * a - mean_a * b + mean_a * mean_b * (int64_t)columns) / (int64_t)(columns - 1);
}

static void verify(void) {
    for (size_t place = 0; place < pair_count; place++)
        REQUIRE(covariance[place].key && place_of(covariance[place].key) == place,
                "the covariance of rows %" PRIu32 " and %" PRIu32 " is missing", pairs[place].row,
                pairs[place].other);
    for (size_t sample = 0; sample < 50; sample++) {
        const struct pair *pair = &pairs[random_at(sample) % pair_count];
        int32_t found = *covariance[place_of(pair)].value;
        REQUIRE(found == expected(pair),
                "the covariance of rows %" PRIu32 " and %" PRIu32 " is not %" PRId32, pair->row,
                pair->other, found);
    }
}

int main(int argc, char **argv) {
    /* The number of columns is limited so that sums fit into 32 bits. */
    struct parameter parameters[] = {NUMBER("ROWS", 500, 2, 100000),
                                     NUMBER("COLUMNS", 1000, 16, 200000)};
    READ_PARAMETERS(parameters);
    rows = parameters[0].value;
    columns = parameters[1].value;
    pair_count = rows * (rows + 1) / 2;
    buckets = pair_count / PAIRS_PER_BUCKET + 1;
    matrix = allocate(rows * sizeof *matrix);
    means = allocate(rows * sizeof *means);
    pairs = allocate(pair_count * sizeof *pairs);
    covariance = calloc(pair_count, sizeof *covariance);
    tables = calloc(omp_get_max_threads() * buckets, sizeof *tables);
    reduced = calloc(omp_get_max_threads(), sizeof *reduced);
    if (!covariance || !tables || !reduced)
        die("out of memory");
    double began = omp_get_wtime(), checksum = 0;
    fill();
    list_pairs();

    double built = omp_get_wtime();
#pragma omp parallel
    {
        average();
        map();
        reduce();
        merge();
    }
    double computed = omp_get_wtime();
    verify();
    for (size_t place = 0; place < pair_count; place++)
        checksum += *covariance[place].value;
    print_result(checksum, built - began, computed - built);

    struct object objects[] = {{"pairs", pairs, pair_count * sizeof *pairs},
                               {"means", means, rows * sizeof *means},
                               {"covariance", covariance, pair_count * sizeof *covariance}};
    PAUSE(objects);
}
