/*
 * One of three ranks whose posts find no room until their timeouts, and then find it. Arguments:
 * REGION_FILE REGION LOCAL_RANK.
 */
#include "check.h"

#include <math.h>

/* Ranks of the job. */
#define RANKS 3
/* Operations of a rank that may be under way. */
#define POSTS 256
/* Elements of a contribution: with its result it takes 6 of the 8 MiB of the arena. */
#define COUNT (3 << 17)

static landbridge_group *job;
static uint32_t rank;

/* Lets the others go on with a part of the program, for which they wait. */
static void begin_part(const char *key)
{
    if (rank == 0) {
        OK(landbridge_store_set(job, key, "", 0, 60.0, &error));
    } else {
        OK(landbridge_store_wait(job, &key, 1, 60.0, &error));
    }
}

/* Waits for an operation and frees it. */
static void finish(landbridge_operation *operation)
{
    OK(landbridge_wait(operation, INFINITY, &error));
    landbridge_operation_free(operation);
}

/* Rank 0 has as many operations under way as may be. */
static void fill_posts(const landbridge_call_options *late)
{
    static landbridge_operation *barriers[POSTS];
    int at;
    for (at = 0; rank == 0 && at < POSTS; at++) {
        OK(landbridge_barrier(job, NULL, &barriers[at], &error));
    }
    if (rank == 0) {
        landbridge_operation *none = NULL;
        EXPECT(LANDBRIDGE_POST_TIMED_OUT, landbridge_barrier(job, late, &none, &error));
        CHECK(none == NULL);
    }
    begin_part("posts");
    for (at = 0; at < POSTS; at++) {
        if (rank == 0) {
            finish(barriers[at]);
        } else {
            OK(landbridge_barrier(job, NULL, NULL, &error));
        }
    }
}

/* Rank 0 has an operation under way that uses memory, or most of the arena, that another one needs. */
static void use_memory(const landbridge_call_options *late, double *given, double *got, size_t count,
                       const char *part)
{
    landbridge_operation *operation = NULL;
    size_t at;
    for (at = 0; at < count; at++) {
        given[at] = 1.0 + at;
        got[at] = 0.0;
    }
    if (rank == 0) {
        OK(landbridge_all_reduce(given, got, count, LANDBRIDGE_F64, LANDBRIDGE_SUM, job, NULL, &operation,
                                 &error));
        EXPECT(LANDBRIDGE_POST_TIMED_OUT,
               landbridge_all_reduce(given, got, count, LANDBRIDGE_F64, LANDBRIDGE_SUM, job, late, NULL,
                                     &error));
    }
    begin_part(part);
    if (rank == 0) {
        finish(operation);
    } else {
        OK(landbridge_all_reduce(given, got, count, LANDBRIDGE_F64, LANDBRIDGE_SUM, job, NULL, NULL, &error));
    }
    for (at = 0; at < count; at++) {
        CHECK(got[at] == RANKS * (1.0 + at));
    }
}

int main(int arguments, char **argument)
{
    static double given[COUNT], got[COUNT];
    landbridge_call_options late = LANDBRIDGE_CALL_OPTIONS;
    landbridge_info info = LANDBRIDGE_INFO;
    void *memory = NULL;
    CHECK(arguments == 4);
    job = connect_rank(argument[1], argument[2], argument[3]);
    OK(landbridge_get_info(job, &info, &error));
    rank = info.rank;
    late.timeout_s = 0.05;
    fill_posts(&late);
    OK(landbridge_alloc(job, 128, &memory, &error));
    use_memory(&late, memory, (double *)memory + 8, 8, "memory");
    OK(landbridge_free(job, memory, &error));
    use_memory(&late, given, got, COUNT, "arena");
    landbridge_close(job);
    printf("rank %u is done\n", (unsigned)rank);
    return 0;
}
