/*
 * One of three ranks that carries out every operation, in memory of its own and of the arena, and
 * misuses what can be misused. Arguments: REGION_FILE REGION LOCAL_RANK.
 */
#include "check.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

/* Elements of most collectives. */
#define COUNT 1000
/* Ranks of the fabric. */
#define RANKS 3

static landbridge_group *group;
static uint32_t rank;

/* Sums in memory of the program: beside each other, in place, and overlapping. */
static void sum_plain(void)
{
    static int64_t given[COUNT + 1], sums[COUNT];
    size_t at;
    for (at = 0; at < COUNT; at++) {
        given[at] = (int64_t)(at * (rank + 1));
        sums[at] = -1;
    }
    OK(landbridge_all_reduce(given, sums, COUNT, LANDBRIDGE_I64, LANDBRIDGE_SUM, group, NULL, NULL,
                             &error));
    for (at = 0; at < COUNT; at++) {
        CHECK(sums[at] == (int64_t)(at * 6) && given[at] == (int64_t)(at * (rank + 1)));
    }
    OK(landbridge_all_reduce(given, given, COUNT, LANDBRIDGE_I64, LANDBRIDGE_MAX, group, NULL, NULL,
                             &error));
    CHECK(given[COUNT - 1] == (COUNT - 1) * RANKS);
    OK(landbridge_all_reduce(given, given + 1, COUNT, LANDBRIDGE_I64, LANDBRIDGE_MIN, group, NULL, NULL,
                             &error));
    CHECK(given[0] == 0 && given[1] == 0 && given[COUNT] == (COUNT - 1) * RANKS);
    OK(landbridge_all_reduce(NULL, NULL, 0, LANDBRIDGE_F32, LANDBRIDGE_SUM, group, NULL, NULL, &error));
}

/* Averages with weights: rank r has the value r and the weight r. */
static void average_by_weight(void)
{
    landbridge_call_options options = LANDBRIDGE_CALL_OPTIONS;
    double value = rank;
    options.weight = rank;
    OK(landbridge_all_reduce(&value, &value, 1, LANDBRIDGE_F64, LANDBRIDGE_AVG, group, &options, NULL,
                             &error));
    CHECK(fabs(value - 5.0 / 3) < 1e-12);
}

/* Has one rank get the result, and then one rank give it. */
static void use_roots(void)
{
    float given = (float)rank, result = -1;
    float *wanted = rank == 2 ? &result : NULL;
    OK(landbridge_reduce(&given, wanted, 1, LANDBRIDGE_F32, LANDBRIDGE_SUM, 2, group, NULL, NULL,
                         &error));
    CHECK(result == (rank == 2 ? 3 : -1));
    OK(landbridge_broadcast(rank == 1 ? &given : NULL, &result, 1, LANDBRIDGE_F32, 1, group, NULL, NULL,
                            &error));
    CHECK(result == 1);
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT,
           landbridge_broadcast(&given, &result, 1, LANDBRIDGE_F32, RANKS, group, NULL, NULL, &error));
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT,
           landbridge_reduce(NULL, &result, 1, LANDBRIDGE_F32, LANDBRIDGE_SUM, 2, group, NULL, NULL,
                             &error));
}

/* Writes the numbers first, first + 1 and so on. */
static void write_numbers(int16_t *to, size_t count, int first)
{
    size_t at;
    for (at = 0; at < count; at++) {
        to[at] = (int16_t)(first + (int)at);
    }
}

/* Gathers and scatters blocks of even and of ragged lengths, one of them empty. */
static void move_blocks(void)
{
    static const size_t counts[RANKS] = {2, 0, 5}, starts[RANKS] = {0, 2, 2};
    int16_t all[7], whole[7], given[RANKS * 2];
    size_t own = counts[rank], at;
    write_numbers(whole, 7, 100);
    memset(all, 0, sizeof all);
    OK(landbridge_all_gather(whole + starts[rank], all, own, counts, LANDBRIDGE_I16, group, NULL, NULL,
                             &error));
    CHECK(memcmp(all, whole, sizeof all) == 0);
    memset(all, 0, sizeof all);
    OK(landbridge_gather(whole + starts[rank], rank == 1 ? all : NULL, own, counts, LANDBRIDGE_I16, 1,
                         group, NULL, NULL, &error));
    CHECK(rank != 1 || memcmp(all, whole, sizeof all) == 0);
    memset(all, 0, sizeof all);
    OK(landbridge_scatter(rank == 2 ? whole : NULL, all, own, counts, LANDBRIDGE_I16, 2, group, NULL,
                          NULL, &error));
    CHECK(memcmp(all, whole + starts[rank], own * sizeof *all) == 0 && (own > 4 || all[own] == 0));
    /* In place: rank 0 has its block at the start of the result. */
    OK(landbridge_reduce_scatter(whole, whole, own, counts, LANDBRIDGE_I16, LANDBRIDGE_SUM, group, NULL,
                                 NULL, &error));
    for (at = 0; at < own; at++) {
        CHECK(whole[at] == 3 * (100 + (int)(starts[rank] + at)));
    }
    write_numbers(given, 2, 10 * (int)rank);
    OK(landbridge_all_gather(given, all, 2, NULL, LANDBRIDGE_I16, group, NULL, NULL, &error));
    CHECK(all[0] == 0 && all[1] == 1 && all[2] == 10 && all[5] == 21);
    write_numbers(given, RANKS * 2, 10 * (int)rank);
    OK(landbridge_all_to_all(given, all, 2, LANDBRIDGE_I16, group, NULL, NULL, &error));
    for (at = 0; at < RANKS; at++) {
        CHECK(all[2 * at] == (int)(10 * at + 2 * rank) && all[2 * at + 1] == all[2 * at] + 1);
    }
    OK(landbridge_reduce_scatter(given, all, 2, NULL, LANDBRIDGE_I16, LANDBRIDGE_BXOR, group, NULL, NULL,
                                 &error));
    at = 2 * rank;
    CHECK(all[0] == ((int)at ^ (int)(at + 10) ^ (int)(at + 20)));
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT, landbridge_all_gather(given, all, own + 1, counts, LANDBRIDGE_I16,
                                                              group, NULL, NULL, &error));
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT, landbridge_scatter(given, all, 1, NULL, LANDBRIDGE_I16, RANKS,
                                                           group, NULL, NULL, &error));
}

/* Exchanges blocks of which some are empty: rank i has i + j elements for rank j, and all in memory of
 * the arena. */
static void exchange_pairs(void)
{
    size_t counts[RANKS], total = 0, other, at;
    uint8_t *given, *taken, *next;
    void *memory = NULL;
    for (other = 0; other < RANKS; other++) {
        counts[other] = rank + other;
        total += counts[other];
    }
    OK(landbridge_alloc(group, 4096, &memory, &error));
    given = memory;
    taken = given + 2048;
    memset(given, (int)rank + 1, total);
    memset(taken, 0, total + 1);
    OK(landbridge_all_to_all_v(given, counts, taken, counts, LANDBRIDGE_BOOL, group, NULL, NULL, &error));
    next = taken;
    for (other = 0; other < RANKS; other++) {
        for (at = 0; at < counts[other]; at++, next++) {
            CHECK(*next == other + 1);
        }
    }
    CHECK(*next == 0);
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT, landbridge_all_to_all_v(given, counts, taken, NULL, LANDBRIDGE_U8,
                                                                group, NULL, NULL, &error));
    OK(landbridge_free(group, memory, &error));
}

/* Sums in memory of the arena: without a copy, in place, and at an odd place. */
static void sum_in_arena(void)
{
    landbridge_operation *operation = NULL;
    void *memory = NULL;
    uint8_t *given, *sums;
    int place, round;
    OK(landbridge_alloc(group, 4096, &memory, &error));
    CHECK(memory != NULL && (uintptr_t)memory % LANDBRIDGE_ALIGN_BYTES == 0);
    given = memory;
    /* Beside the contribution, over it, over a part of it, and where nothing can be sent from. */
    for (place = 0; place < 4; place++) {
        static const size_t places[] = {2048, 0, 512, 2049};
        sums = given + places[place];
        for (round = 1; round <= 2; round++) {
            memset(given, (int)(rank + 1) * round, COUNT);
            OK(landbridge_all_reduce(given, sums, COUNT, LANDBRIDGE_U8, LANDBRIDGE_SUM, group, NULL,
                                     &operation, &error));
            OK(landbridge_wait(operation, INFINITY, &error));
            CHECK(sums[0] == 6 * round && sums[COUNT - 1] == 6 * round);
            OK(landbridge_wait_free(operation, INFINITY, &error));
            landbridge_operation_free(operation);
        }
    }
    /* Two operations that write the same memory: the second waits for the first. */
    memset(given, 1, COUNT);
    sums = given + 2048;
    OK(landbridge_all_reduce(given, sums, COUNT, LANDBRIDGE_U8, LANDBRIDGE_SUM, group, NULL, &operation,
                             &error));
    OK(landbridge_all_reduce(given, sums, COUNT, LANDBRIDGE_U8, LANDBRIDGE_MAX, group, NULL, NULL,
                             &error));
    CHECK(sums[0] == 1);
    /* Memory that an operation uses may be freed. */
    OK(landbridge_free(group, memory, &error));
    OK(landbridge_wait(operation, INFINITY, &error));
    landbridge_operation_free(operation);
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT, landbridge_free(group, memory, &error));
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT,
           landbridge_all_reduce(given, given, COUNT, LANDBRIDGE_U8, LANDBRIDGE_SUM, group, NULL, NULL,
                                 &error));
    OK(landbridge_alloc(group, 64, &memory, &error));
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT,
           landbridge_all_reduce(memory, memory, 65, LANDBRIDGE_U8, LANDBRIDGE_SUM, group, NULL, NULL,
                                 &error));
    EXPECT(LANDBRIDGE_ARENA_FULL, landbridge_alloc(group, 1 << 30, &memory, &error));
    CHECK(memory == NULL);
}

/* Has many operations under way, and waits for them in another order. */
static void post_many(void)
{
    enum { OPERATIONS = 300 };
    static landbridge_operation *operations[OPERATIONS];
    static int32_t values[OPERATIONS];
    int at, is_done = 0;
    for (at = 0; at < OPERATIONS; at++) {
        values[at] = at + (int)rank;
        OK(landbridge_all_reduce(&values[at], &values[at], 1, LANDBRIDGE_I32, LANDBRIDGE_SUM, group,
                                 NULL, &operations[at], &error));
    }
    while (!is_done) {
        OK(landbridge_test(operations[7], &is_done, &error));
    }
    CHECK(values[7] == 3 * 7 + 3);
    for (at = OPERATIONS - 1; at >= 0; at--) {
        if (at % 10 != 5) {
            OK(landbridge_wait(operations[at], INFINITY, &error));
            OK(landbridge_wait(operations[at], 0, &error));
            CHECK(values[at] == 3 * at + 3);
        }
        landbridge_operation_free(operations[at]);
    }
    /* Nobody waited for this one, so nothing was written. */
    CHECK(values[5] == 5 + (int)rank);
}

/* Uses the group in a child, which must not. */
static void fork_child(void)
{
    pid_t child = fork();
    int status = -1;
    CHECK(child >= 0);
    if (child == 0) {
        float value = 1;
        EXPECT(LANDBRIDGE_FORKED, landbridge_all_reduce(&value, &value, 1, LANDBRIDGE_F32,
                                                        LANDBRIDGE_SUM, group, NULL, NULL, &error));
        landbridge_close(group);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Commits two steps, and posts different collectives at last. Returns the second commit. */
static landbridge_operation *commit_and_disagree(void)
{
    landbridge_info info = LANDBRIDGE_INFO;
    landbridge_operation *operation = NULL;
    int32_t values[2] = {1, 1};
    OK(landbridge_commit(group, 41, NULL, NULL, &error));
    OK(landbridge_all_reduce(values, values, 2, LANDBRIDGE_I32, LANDBRIDGE_PROD, group, NULL, NULL,
                             &error));
    OK(landbridge_commit(group, 42, NULL, &operation, &error));
    OK(landbridge_wait(operation, INFINITY, &error));
    OK(landbridge_get_info(group, &info, &error));
    CHECK(info.has_committed_step && info.committed_step == 42);
    EXPECT(LANDBRIDGE_RANKS_DISAGREE,
           landbridge_all_reduce(values, values, rank == 0 ? 1 : 2, LANDBRIDGE_I32, LANDBRIDGE_SUM,
                                 group, NULL, NULL, &error));
    return operation;
}

int main(int arguments, char **argument)
{
    landbridge_info info = LANDBRIDGE_INFO;
    landbridge_operation *operation;
    CHECK(arguments == 4);
    group = connect_rank(argument[1], argument[2], argument[3]);
    OK(landbridge_get_info(group, &info, &error));
    CHECK(info.size == RANKS && info.rank < RANKS && info.epoch > 0 && info.state == LANDBRIDGE_OK);
    CHECK(!info.has_committed_step);
    rank = info.rank;
    sum_plain();
    average_by_weight();
    use_roots();
    move_blocks();
    exchange_pairs();
    sum_in_arena();
    OK(landbridge_barrier(group, NULL, NULL, &error));
    post_many();
    fork_child();
    operation = commit_and_disagree();
    landbridge_close(group);
    /* An operation outlives its group. */
    OK(landbridge_wait(operation, 0, &error));
    landbridge_operation_free(operation);
    printf("rank %u is done\n", (unsigned)rank);
    return 0;
}
