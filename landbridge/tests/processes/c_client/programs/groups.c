/*
 * One of three ranks that makes groups, uses them at once, and closes them in any order. Arguments:
 * REGION_FILE REGION LOCAL_RANK.
 */
#include "check.h"

#include <math.h>
#include <pthread.h>

/* Ranks of the job. */
#define RANKS 3
/* How long to wait for gateways and ranks, in seconds. */
#define TIMEOUT_S 60.0

static landbridge_group *job;
static uint32_t rank;

/* Returns the sum of what the ranks of a group give. */
static int32_t sum_in(landbridge_group *group, int32_t value)
{
    OK(landbridge_all_reduce(&value, &value, 1, LANDBRIDGE_I32, LANDBRIDGE_SUM, group, NULL, NULL, &error));
    return value;
}

/* Makes a group of ranks 2 and 0, which all ranks count. NULL on rank 1. */
static landbridge_group *make_pair(void)
{
    static const uint32_t ranks[] = {2, 0};
    landbridge_group *made = (landbridge_group *)&made;
    OK(landbridge_new_group(job, ranks, 2, TIMEOUT_S, &made, &error));
    CHECK((made == NULL) == (rank == 1));
    return made;
}

/* Uses a group of ranks 0 and 2, and a group of that group. */
static void use_pair(void)
{
    landbridge_info info = LANDBRIDGE_INFO;
    landbridge_group *pair = make_pair(), *alone = NULL;
    uint32_t in_job = 7, last = 1;
    if (pair == NULL) {
        return;
    }
    OK(landbridge_get_info(pair, &info, &error));
    CHECK(info.size == 2 && info.rank == rank / 2 && info.epoch > 0 && info.state == LANDBRIDGE_OK);
    OK(landbridge_rank_in_job(pair, 1, &in_job, &error));
    CHECK(in_job == 2);
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT, landbridge_rank_in_job(pair, 2, &in_job, &error));
    CHECK(sum_in(pair, (int32_t)rank + 1) == 4);
    OK(landbridge_commit(pair, 5, NULL, NULL, &error));
    OK(landbridge_new_group(pair, &last, 1, TIMEOUT_S, &alone, &error));
    CHECK((alone == NULL) == (rank == 0));
    /* The group of a group stays when that is closed. */
    landbridge_close(pair);
    if (alone != NULL) {
        OK(landbridge_rank_in_job(alone, 0, &in_job, &error));
        CHECK(in_job == 2 && sum_in(alone, 9) == 9);
        landbridge_close(alone);
    }
}

/* Splits the job by color, with and without ranks that have none. */
static void split_job(void)
{
    landbridge_group *half = NULL, *rest = (landbridge_group *)&rest;
    OK(landbridge_split(job, rank == 1 ? 4 : 70000, 0, TIMEOUT_S, &half, &error));
    CHECK(sum_in(half, 1) == (rank == 1 ? 1 : 2));
    OK(landbridge_split(job, rank == 0 ? LANDBRIDGE_NO_COLOR : 0, -5, TIMEOUT_S, &rest, &error));
    CHECK((rest == NULL) == (rank == 0));
    CHECK(rest == NULL || sum_in(rest, (int32_t)rank) == 3);
    landbridge_close(rest);
    /* Keys that ask for another order make no group, on any rank, and the next split does. */
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT,
           landbridge_split(job, 0, -(int32_t)rank, TIMEOUT_S, &rest, &error));
    CHECK(rest == NULL);
    OK(landbridge_split(job, 0, (int32_t)rank, TIMEOUT_S, &rest, &error));
    CHECK(sum_in(rest, 1) == RANKS && sum_in(half, 1) == (rank == 1 ? 1 : 2));
    landbridge_close(rest);
    landbridge_close(half);
}

/* Makes groups by tag, again and again, without rank 0. */
static void use_tags(void)
{
    static const uint32_t ranks[] = {1, 2};
    int round;
    for (round = 0; rank != 0 && round < 20; round++) {
        landbridge_group *made = NULL;
        OK(landbridge_new_group_with_tag(job, ranks, 2, (uint32_t)round, TIMEOUT_S, &made, &error));
        CHECK(sum_in(made, round) == 2 * round);
        landbridge_close(made);
    }
}

/* Names different ranks with one tag: ranks 0 and 2 hear of it, at the call or at the first collective. */
static void disagree(void)
{
    static const uint32_t ranks[] = {0, 2, 1};
    landbridge_group *made = NULL;
    landbridge_error error;
    landbridge_status status;
    if (rank == 1) {
        return;
    }
    status = landbridge_new_group_with_tag(job, ranks, rank == 0 ? 2 : 3, UINT32_MAX, TIMEOUT_S, &made,
                                           &error);
    if (status == LANDBRIDGE_OK) {
        status = landbridge_barrier(made, NULL, NULL, &error);
    } else {
        CHECK(made == NULL);
    }
    if (status != LANDBRIDGE_RANKS_DISAGREE) {
        fprintf(stderr, "status %d: %s\n", (int)status, error.text);
        exit(EXIT_FAILURE);
    }
    landbridge_close(made);
}

/* Adds ones in a group, for a thread. */
static void *sum_ones(void *group)
{
    static int32_t sum;
    sum = sum_in(group, 1);
    return &sum;
}

/* A thread of rank 0 waits in one group for rank 2, which comes only after all have met in the job. */
static void wait_in_two_groups(void)
{
    landbridge_group *pair = make_pair();
    pthread_t thread;
    void *sum = NULL;
    if (rank == 0) {
        CHECK(pthread_create(&thread, NULL, sum_ones, pair) == 0);
    }
    CHECK(sum_in(job, 1) == RANKS);
    if (rank == 0) {
        CHECK(pthread_join(thread, &sum) == 0);
        CHECK(*(int32_t *)sum == 2);
    }
    if (rank == 2) {
        CHECK(sum_in(pair, 1) == 2);
    }
    landbridge_close(pair);
}

/* A post that waits, for a thread: in a group, and over memory that an operation of another one uses. */
struct waiting_post {
    landbridge_group *group;
    int64_t *given, *sums;
    landbridge_call_options options;
    pthread_barrier_t begun;
};

/* Posts what another operation writes, over what that one reads. */
static void *post_over(void *argument)
{
    struct waiting_post *post = argument;
    pthread_barrier_wait(&post->begun);
    OK(landbridge_all_reduce(post->sums, post->given, 1, LANDBRIDGE_I64, LANDBRIDGE_SUM, post->group,
                             &post->options, NULL, &error));
    return NULL;
}

/* A thread of rank 0 cannot post in one group until rank 2 comes, which meets all others in the job first.
 * So that post must not delay posts in the job. */
static void post_beside_waiting_post(void)
{
    landbridge_group *first = make_pair(), *second = make_pair();
    landbridge_call_options options = LANDBRIDGE_CALL_OPTIONS;
    landbridge_operation *operation = NULL;
    struct waiting_post post;
    pthread_t thread;
    void *memory = NULL;
    int64_t value = 4;
    options.timeout_s = TIMEOUT_S;
    if (rank == 0) {
        OK(landbridge_alloc(job, 2 * LANDBRIDGE_ALIGN_BYTES, &memory, &error));
        post.group = second;
        post.options = options;
        post.given = memory;
        post.sums = post.given + LANDBRIDGE_ALIGN_BYTES / sizeof value;
        *post.given = value;
        OK(landbridge_all_reduce(post.given, post.sums, 1, LANDBRIDGE_I64, LANDBRIDGE_SUM, first,
                                 &options, &operation, &error));
        CHECK(pthread_barrier_init(&post.begun, NULL, 2) == 0);
        CHECK(pthread_create(&thread, NULL, post_over, &post) == 0);
        pthread_barrier_wait(&post.begun);
    }
    OK(landbridge_barrier(job, &options, NULL, &error));
    if (rank == 2) {
        OK(landbridge_all_reduce(&value, &value, 1, LANDBRIDGE_I64, LANDBRIDGE_SUM, first, &options,
                                 NULL, &error));
        CHECK(value == 8);
        OK(landbridge_all_reduce(&value, &value, 1, LANDBRIDGE_I64, LANDBRIDGE_SUM, second, &options,
                                 NULL, &error));
        CHECK(value == 16);
    }
    if (rank == 0) {
        OK(landbridge_wait(operation, INFINITY, &error));
        landbridge_operation_free(operation);
        CHECK(pthread_join(thread, NULL) == 0);
        pthread_barrier_destroy(&post.begun);
        CHECK(*post.sums == 8 && *post.given == 16);
        OK(landbridge_free(job, memory, &error));
    }
    landbridge_close(second);
    landbridge_close(first);
}

/* Closes a group with work under way, which goes on in memory of the arena and of the program. */
static void close_with_work(void)
{
    landbridge_operation *operations[2] = {NULL, NULL};
    landbridge_group *pair = make_pair();
    static int64_t plain[1000];
    void *memory = NULL;
    int64_t *shared;
    int at;
    if (pair == NULL) {
        return;
    }
    OK(landbridge_alloc(pair, sizeof plain, &memory, &error));
    shared = memory;
    for (at = 0; at < 1000; at++) {
        plain[at] = shared[at] = at;
    }
    OK(landbridge_all_reduce(plain, plain, 1000, LANDBRIDGE_I64, LANDBRIDGE_SUM, pair, NULL, &operations[0],
                             &error));
    OK(landbridge_all_reduce(shared, shared, 1000, LANDBRIDGE_I64, LANDBRIDGE_SUM, pair, NULL,
                             &operations[1], &error));
    landbridge_close(pair);
    for (at = 0; at < 2; at++) {
        OK(landbridge_wait(operations[at], INFINITY, &error));
        OK(landbridge_wait_free(operations[at], INFINITY, &error));
        landbridge_operation_free(operations[at]);
    }
    for (at = 0; at < 1000; at++) {
        CHECK(plain[at] == 2 * at && shared[at] == 2 * at);
    }
    /* Memory is the rank's, so any of its groups frees it. */
    OK(landbridge_free(job, memory, &error));
}

/* Passes arguments that cannot be used. No rank counts such calls. */
static void misuse(void)
{
    static const uint32_t twice[] = {1, 1}, strange[] = {0, 3}, all[] = {0, 1, 2, 3};
    landbridge_group *made = (landbridge_group *)&made;
    uint32_t in_job;
#define REFUSED(call) EXPECT(LANDBRIDGE_INVALID_ARGUMENT, call)
    REFUSED(landbridge_new_group(NULL, all, 3, TIMEOUT_S, &made, &error));
    CHECK(made == NULL);
    REFUSED(landbridge_new_group(job, all, 3, TIMEOUT_S, NULL, &error));
    REFUSED(landbridge_new_group(job, NULL, 3, TIMEOUT_S, &made, &error));
    REFUSED(landbridge_new_group(job, all, 0, TIMEOUT_S, &made, &error));
    REFUSED(landbridge_new_group(job, all, 4, TIMEOUT_S, &made, &error));
    REFUSED(landbridge_new_group(job, all, (size_t)-1, TIMEOUT_S, &made, &error));
    REFUSED(landbridge_new_group(job, twice, 2, TIMEOUT_S, &made, &error));
    REFUSED(landbridge_new_group(job, strange, 2, TIMEOUT_S, &made, &error));
    REFUSED(landbridge_new_group(job, all, 3, -1.0, &made, &error));
    REFUSED(landbridge_new_group_with_tag(job, strange, 2, 0, TIMEOUT_S, &made, &error));
    REFUSED(landbridge_split(job, 0, 0, NAN, &made, &error));
    REFUSED(landbridge_split(job, 0, 0, INFINITY, &made, &error));
    REFUSED(landbridge_rank_in_job(job, 0, NULL, &error));
    REFUSED(landbridge_rank_in_job(NULL, 0, &in_job, &error));
    CHECK(made == NULL);
}

int main(int arguments, char **argument)
{
    landbridge_info info = LANDBRIDGE_INFO;
    landbridge_group *last;
    CHECK(arguments == 4);
    job = connect_rank(argument[1], argument[2], argument[3]);
    OK(landbridge_get_info(job, &info, &error));
    CHECK(info.size == RANKS);
    rank = info.rank;
    use_pair();
    split_job();
    use_tags();
    misuse();
    disagree();
    wait_in_two_groups();
    post_beside_waiting_post();
    close_with_work();
    last = make_pair();
    /* Only the job recovers. */
    CHECK(last == NULL || landbridge_recover(last, 1.0, NULL) == LANDBRIDGE_INVALID_ARGUMENT);
    /* A rank that is detached ends the epoch, in which no more groups are made. */
    OK(landbridge_barrier(job, NULL, NULL, &error));
    landbridge_close(job);
    /* The rank stays attached for its other group. */
    if (last != NULL) {
        CHECK(sum_in(last, 3) == 6);
        OK(landbridge_commit(last, 6, NULL, NULL, &error));
    }
    landbridge_close(last);
    printf("rank %u is done\n", (unsigned)rank);
    return 0;
}
