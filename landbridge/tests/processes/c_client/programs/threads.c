/*
 * All ranks of two jobs in one process, each a group with a thread of its own. Arguments: the sockets
 * of both gateways, and for each job its name and its token file.
 */
#include "check.h"

#include <math.h>
#include <pthread.h>

/* Collectives of each rank. */
#define ROUNDS 50
/* Elements of each collective. */
#define COUNT 5000

/* One rank. */
struct rank {
    const char *socket, *job, *token_file;
    uint32_t number;
    int64_t factor;
    landbridge_group *group;
    pthread_barrier_t *others;
};

/* Posts a collective that only one rank has posted: its wait ends, and the collective goes on. */
static void wait_too_short(struct rank *self)
{
    landbridge_operation *operation = NULL;
    int64_t value = self->factor;
    int is_done = 7;
    if (self->number == 0) {
        OK(landbridge_all_reduce(&value, &value, 1, LANDBRIDGE_I64, LANDBRIDGE_SUM, self->group, NULL,
                                 &operation, &error));
        EXPECT(LANDBRIDGE_WAIT_TIMEOUT, landbridge_wait(operation, 0.01, &error));
        EXPECT(LANDBRIDGE_WAIT_TIMEOUT, landbridge_wait_free(operation, 0, &error));
        OK(landbridge_test(operation, &is_done, &error));
        CHECK(is_done == 0 && value == self->factor);
    }
    pthread_barrier_wait(self->others);
    if (self->number == 1) {
        OK(landbridge_all_reduce(&value, &value, 1, LANDBRIDGE_I64, LANDBRIDGE_SUM, self->group, NULL,
                                 &operation, &error));
    }
    OK(landbridge_wait(operation, INFINITY, &error));
    CHECK(value == 2 * self->factor);
    landbridge_operation_free(operation);
}

/* Runs one rank. */
static void *run(void *argument)
{
    struct rank *self = argument;
    landbridge_connect_options options = LANDBRIDGE_CONNECT_OPTIONS;
    int64_t *values = malloc(COUNT * sizeof *values);
    int round, at;
    CHECK(values != NULL);
    options.socket = self->socket;
    options.job = self->job;
    options.token_file = self->token_file;
    options.rank = self->number;
    options.arena_bytes = 1 << 20;
    options.timeout_s = 120.0;
    OK(landbridge_connect(&options, &self->group, &error));
    for (round = 0; round < ROUNDS; round++) {
        for (at = 0; at < COUNT; at++) {
            values[at] = self->factor * (round + at + self->number);
        }
        OK(landbridge_all_reduce(values, values, COUNT, LANDBRIDGE_I64, LANDBRIDGE_SUM, self->group,
                                 NULL, NULL, &error));
        for (at = 0; at < COUNT; at++) {
            CHECK(values[at] == self->factor * (2 * (round + at) + 1));
        }
    }
    wait_too_short(self);
    landbridge_close(self->group);
    free(values);
    return NULL;
}

int main(int arguments, char **argument)
{
    struct rank ranks[4];
    pthread_t threads[4];
    pthread_barrier_t others[2];
    int at;
    CHECK(arguments == 7);
    for (at = 0; at < 2; at++) {
        CHECK(pthread_barrier_init(&others[at], NULL, 2) == 0);
    }
    for (at = 0; at < 4; at++) {
        ranks[at].socket = argument[1 + at % 2];
        ranks[at].job = argument[3 + at / 2 * 2];
        ranks[at].token_file = argument[4 + at / 2 * 2];
        ranks[at].number = (uint32_t)(at % 2);
        ranks[at].factor = at / 2 == 0 ? 1 : -1000;
        ranks[at].group = NULL;
        ranks[at].others = &others[at / 2];
        CHECK(pthread_create(&threads[at], NULL, run, &ranks[at]) == 0);
    }
    for (at = 0; at < 4; at++) {
        CHECK(pthread_join(threads[at], NULL) == 0);
    }
    for (at = 0; at < 2; at++) {
        pthread_barrier_destroy(&others[at]);
    }
    printf("all ranks are done\n");
    return 0;
}
