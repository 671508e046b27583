/*
 * A rank that counts steps, and recovers when a gateway is killed, with a group that it made. It prints
 * each step that it has committed. After step 3 it waits for a line, before which the test kills a
 * gateway and starts it again. Arguments: REGION_FILE REGION LOCAL_RANK.
 */
#include "check.h"

#include <math.h>

/* Steps to count. */
#define STEPS 6
/* Elements of each collective: 1 MiB. */
#define COUNT 131072

/* Makes a group of both ranks. */
static landbridge_group *make_both(landbridge_group *group)
{
    static const uint32_t ranks[] = {0, 1};
    landbridge_group *both = NULL;
    OK(landbridge_new_group(group, ranks, 2, 120.0, &both, &error));
    return both;
}

/* Exchanges a number between both ranks of a group, and returns the other one's. */
static int64_t exchange(landbridge_group *group, int64_t number)
{
    landbridge_info info = LANDBRIDGE_INFO;
    landbridge_operation *operation = NULL;
    int64_t other = 0;
    OK(landbridge_get_info(group, &info, &error));
    OK(landbridge_send(&number, 1, LANDBRIDGE_I64, 1 - info.rank, 3, group, NULL, &operation, &error));
    OK(landbridge_receive(&other, 1, LANDBRIDGE_I64, 1 - info.rank, 3, group, NULL, NULL, &error));
    OK(landbridge_wait(operation, INFINITY, &error));
    landbridge_operation_free(operation);
    return other;
}

/* Adds the step's number to the sum of all ranks, in memory of the arena; returns the status. */
static landbridge_status add_step(landbridge_group *group, int64_t step, int64_t *given, int64_t *sums,
                                  landbridge_error *error)
{
    landbridge_status status;
    int at;
    for (at = 0; at < COUNT; at++) {
        given[at] = step;
    }
    status = landbridge_all_reduce(given, sums, COUNT, LANDBRIDGE_I64, LANDBRIDGE_SUM, group, NULL, NULL,
                                   error);
    for (at = 0; at < COUNT; at++) {
        CHECK(given[at] == step);
        CHECK(status != LANDBRIDGE_OK || sums[at] == 2 * step);
    }
    return status == LANDBRIDGE_OK ? landbridge_commit(group, (uint64_t)step, NULL, NULL, error) : status;
}

/* Recovers, makes the other group again, and checks that all ranks have finished the same steps. */
static void recover(landbridge_group *group, landbridge_group **both, int64_t finished)
{
    int64_t least = finished, most = finished;
    landbridge_info info = LANDBRIDGE_INFO;
    landbridge_store_values *values = NULL;
    landbridge_status status;
    OK(landbridge_get_info(group, &info, &error));
    CHECK(info.state == LANDBRIDGE_GATEWAY_LOST || info.state == LANDBRIDGE_EPOCH_ENDED ||
          info.state == LANDBRIDGE_OK);
    OK(landbridge_recover(group, 120.0, &error));
    OK(landbridge_get_info(group, &info, &error));
    CHECK(info.state == LANDBRIDGE_OK);
    CHECK(info.has_committed_step && info.committed_step == (uint64_t)finished);
    OK(landbridge_all_reduce(&least, &least, 1, LANDBRIDGE_I64, LANDBRIDGE_MIN, group, NULL, NULL,
                             &error));
    OK(landbridge_all_reduce(&most, &most, 1, LANDBRIDGE_I64, LANDBRIDGE_MAX, group, NULL, NULL,
                             &error));
    CHECK(least == finished && most == finished);
    /* The group is over, and its ranks make another one. */
    status = landbridge_barrier(*both, NULL, NULL, NULL);
    CHECK(status == LANDBRIDGE_GATEWAY_LOST || status == LANDBRIDGE_EPOCH_ENDED);
    OK(landbridge_get_info(*both, &info, &error));
    CHECK(info.state == status);
    landbridge_close(*both);
    *both = make_both(group);
    OK(landbridge_barrier(*both, NULL, NULL, &error));
    CHECK(exchange(*both, finished) == finished && exchange(group, 5) == 5);
    /* The other gateway has kept the store. */
    OK(landbridge_store_get(group, "kept", 120.0, &values, &error));
    CHECK(strcmp(landbridge_store_value(values, 0, NULL), "value") == 0);
    landbridge_store_values_free(values);
}

int main(int arguments, char **argument)
{
    landbridge_group *group, *both;
    void *memory = NULL;
    int64_t step = 1, *given, *sums;
    int recoveries = 0;
    CHECK(arguments == 4);
    group = connect_rank(argument[1], argument[2], argument[3]);
    both = make_both(group);
    OK(landbridge_store_set(group, "kept", "value", 5, 120.0, &error));
    CHECK(exchange(group, 7) == 7 && exchange(both, 8) == 8);
    OK(landbridge_alloc(group, 2 * COUNT * sizeof *given, &memory, &error));
    given = memory;
    sums = given + COUNT;
    while (step <= STEPS) {
        landbridge_error error;
        landbridge_status status = add_step(group, step, given, sums, &error);
        if (status == LANDBRIDGE_OK) {
            printf("step %d\n", (int)step);
            fflush(stdout);
            if (step == 3) {
                CHECK(getchar() == '\n');
            }
            step++;
            continue;
        }
        fprintf(stderr, "%s\n", error.text);
        CHECK(status < LANDBRIDGE_INVALID_ARGUMENT && step == 4 && recoveries < 5);
        recoveries++;
        recover(group, &both, step - 1);
    }
    CHECK(recoveries > 0);
    OK(landbridge_free(group, memory, &error));
    landbridge_close(group);
    landbridge_close(both);
    return 0;
}
