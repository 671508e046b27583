/*
 * One of three ranks that sends to the others and receives from them, by tags. Arguments: REGION_FILE
 * REGION LOCAL_RANK.
 */
#include "check.h"

#include <math.h>
#include <pthread.h>

/* Ranks of the job. */
#define RANKS 3
/* Elements of long sends: 2 MiB, which take many segments. */
#define COUNT 262144

static landbridge_group *job;
static uint32_t rank;

/* Waits for an operation and frees it. */
static void finish(landbridge_operation *operation)
{
    OK(landbridge_wait(operation, INFINITY, &error));
    OK(landbridge_wait_free(operation, INFINITY, &error));
    landbridge_operation_free(operation);
}

/* Sends an array to the next rank, and receives one of the rank before, in memory of the program and of
 * the arena. */
static void send_round(landbridge_group *group, uint32_t own, uint32_t size, double *given, double *got)
{
    landbridge_operation *operations[2] = {NULL, NULL};
    uint32_t next = (own + 1) % size, before = (own + size - 1) % size;
    int at;
    for (at = 0; at < COUNT; at++) {
        given[at] = own + 1.0 / (1 + at);
        got[at] = -1;
    }
    OK(landbridge_send(given, COUNT, LANDBRIDGE_F64, next, 0, group, NULL, &operations[0], &error));
    OK(landbridge_receive(got, COUNT, LANDBRIDGE_F64, before, 0, group, NULL, &operations[1], &error));
    finish(operations[0]);
    finish(operations[1]);
    for (at = 0; at < COUNT; at++) {
        CHECK(given[at] == own + 1.0 / (1 + at) && got[at] == before + 1.0 / (1 + at));
    }
}

/* Sends round a ring: of the job, and of a group. */
static void use_rings(void)
{
    static const uint32_t ranks[] = {0, 2};
    static double given[COUNT], got[COUNT];
    landbridge_group *pair = NULL;
    void *memory = NULL;
    double *shared;
    send_round(job, rank, RANKS, given, got);
    OK(landbridge_alloc(job, 2 * sizeof given, &memory, &error));
    shared = memory;
    send_round(job, rank, RANKS, shared, shared + COUNT);
    OK(landbridge_new_group(job, ranks, 2, 60.0, &pair, &error));
    if (pair != NULL) {
        send_round(pair, rank / 2, 2, shared + COUNT, got);
        landbridge_close(pair);
    }
    OK(landbridge_free(job, memory, &error));
}

/* Receives in another order than that of the sends, one of them without elements. */
static void use_tags(void)
{
    int16_t values[4] = {1, 2, 3, 4};
    landbridge_operation *operations[4];
    uint32_t at;
    if (rank == 0) {
        for (at = 0; at < 4; at++) {
            OK(landbridge_send(&values[at], at == 2 ? 0 : 1, LANDBRIDGE_I16, 2,
                               at == 3 ? LANDBRIDGE_TAG_MAX : at / 2, job, NULL, &operations[at], &error));
            /* The contribution was read. */
            values[at] = -1;
        }
        for (at = 0; at < 4; at++) {
            finish(operations[at]);
        }
    }
    if (rank == 2) {
        int16_t got[4] = {0, 0, 0, 0};
        OK(landbridge_receive(&got[3], 1, LANDBRIDGE_I16, 0, LANDBRIDGE_TAG_MAX, job, NULL, NULL, &error));
        OK(landbridge_receive(NULL, 0, LANDBRIDGE_I16, 0, 1, job, NULL, NULL, &error));
        OK(landbridge_receive(&got[0], 1, LANDBRIDGE_I16, 0, 0, job, NULL, NULL, &error));
        OK(landbridge_receive(&got[1], 1, LANDBRIDGE_I16, 0, 0, job, NULL, NULL, &error));
        CHECK(got[0] == 1 && got[1] == 2 && got[2] == 0 && got[3] == 4);
    }
}

/* Answers numbers of rank 0 until it gets -1, for a thread. */
static void *answer(void *unused)
{
    int32_t number = 0;
    while (number >= 0) {
        OK(landbridge_receive(&number, 1, LANDBRIDGE_I32, 0, 100, job, NULL, NULL, &error));
        number = number < 0 ? number : number * number;
        OK(landbridge_send(&number, 1, LANDBRIDGE_I32, 0, 101, job, NULL, NULL, &error));
    }
    return unused;
}

/* A thread of rank 1 waits for rank 0, while the others use the job. */
static void answer_beside_collectives(void)
{
    pthread_t thread;
    int32_t round, value = 1;
    if (rank == 1) {
        CHECK(pthread_create(&thread, NULL, answer, NULL) == 0);
    }
    OK(landbridge_all_reduce(&value, &value, 1, LANDBRIDGE_I32, LANDBRIDGE_SUM, job, NULL, NULL, &error));
    CHECK(value == RANKS);
    for (round = 20; rank == 0 && round >= -1; round--) {
        OK(landbridge_send(&round, 1, LANDBRIDGE_I32, 1, 100, job, NULL, NULL, &error));
        OK(landbridge_receive(&value, 1, LANDBRIDGE_I32, 1, 101, job, NULL, NULL, &error));
        CHECK(value == (round < 0 ? round : round * round));
    }
    if (rank == 1) {
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

/* Ends that differ, and an end that comes too late: both hear of it, and the next sends meet. */
static void fail(void)
{
    landbridge_call_options options = LANDBRIDGE_CALL_OPTIONS;
    int32_t values[2] = {5, 6};
    if (rank == 0) {
        EXPECT(LANDBRIDGE_RANKS_DISAGREE,
               landbridge_send(values, 1, LANDBRIDGE_I32, 1, 7, job, NULL, NULL, &error));
        options.timeout_s = 0.1;
        EXPECT(LANDBRIDGE_RANKS_TIMED_OUT,
               landbridge_receive(values, 1, LANDBRIDGE_I32, 1, 8, job, &options, NULL, &error));
        CHECK(values[0] == 5 && values[1] == 6);
    }
    if (rank == 1) {
        EXPECT(LANDBRIDGE_RANKS_DISAGREE,
               landbridge_receive(values, 2, LANDBRIDGE_I32, 0, 7, job, NULL, NULL, &error));
    }
    OK(landbridge_barrier(job, NULL, NULL, &error));
    if (rank == 1) {
        EXPECT(LANDBRIDGE_RANKS_TIMED_OUT,
               landbridge_send(values, 1, LANDBRIDGE_I32, 0, 8, job, NULL, NULL, &error));
        OK(landbridge_send(values, 2, LANDBRIDGE_I32, 0, 8, job, NULL, NULL, &error));
    }
    if (rank == 0) {
        int32_t got[2] = {0, 0};
        OK(landbridge_receive(got, 2, LANDBRIDGE_I32, 1, 8, job, NULL, NULL, &error));
        CHECK(got[0] == 5 && got[1] == 6);
    }
}

/* Passes arguments that cannot be used. */
static void misuse(void)
{
    landbridge_operation *operation = (landbridge_operation *)&operation;
    uint32_t other = (rank + 1) % RANKS;
    int32_t value = 1;
#define REFUSED(call) EXPECT(LANDBRIDGE_INVALID_ARGUMENT, call)
    REFUSED(landbridge_send(&value, 1, LANDBRIDGE_I32, rank, 0, job, NULL, NULL, &error));
    REFUSED(landbridge_send(&value, 1, LANDBRIDGE_I32, RANKS, 0, job, NULL, NULL, &error));
    REFUSED(landbridge_send(&value, 1, LANDBRIDGE_I32, other, LANDBRIDGE_TAG_MAX + 1, job, NULL, NULL,
                            &error));
    REFUSED(landbridge_send(NULL, 1, LANDBRIDGE_I32, other, 0, job, NULL, NULL, &error));
    REFUSED(landbridge_send(&value, (size_t)-1, LANDBRIDGE_I32, other, 0, job, NULL, NULL, &error));
    REFUSED(landbridge_receive(NULL, 1, LANDBRIDGE_I32, other, 0, job, NULL, NULL, &error));
    REFUSED(landbridge_receive(&value, 1, (landbridge_dtype)0, other, 0, job, NULL, &operation, &error));
    REFUSED(landbridge_receive(&value, 1, LANDBRIDGE_I32, other, 0, NULL, NULL, NULL, &error));
    CHECK(value == 1 && operation == (landbridge_operation *)&operation);
}

/* Closes the job with a receive under way, which nobody will send. */
static void close_with_receive(void)
{
    landbridge_operation *operation = NULL;
    landbridge_status status;
    int32_t value = 3;
    OK(landbridge_receive(&value, 1, LANDBRIDGE_I32, (rank + 1) % RANKS, 9, job, NULL, &operation, &error));
    landbridge_close(job);
    status = landbridge_wait(operation, INFINITY, NULL);
    /* The other rank may have been faster. */
    CHECK(status == LANDBRIDGE_GATEWAY_LOST || status == LANDBRIDGE_RANK_LOST);
    CHECK(value == 3);
    landbridge_operation_free(operation);
}

int main(int arguments, char **argument)
{
    landbridge_info info = LANDBRIDGE_INFO;
    CHECK(arguments == 4);
    job = connect_rank(argument[1], argument[2], argument[3]);
    OK(landbridge_get_info(job, &info, &error));
    CHECK(info.size == RANKS);
    rank = info.rank;
    use_rings();
    use_tags();
    answer_beside_collectives();
    fail();
    misuse();
    OK(landbridge_barrier(job, NULL, NULL, &error));
    close_with_receive();
    printf("rank %u is done\n", (unsigned)rank);
    return 0;
}
