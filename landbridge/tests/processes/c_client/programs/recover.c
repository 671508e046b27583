/*
 * A rank that counts steps, and recovers when a gateway is killed. It prints each step that it has
 * committed. After step 3 it waits for a line, before which the test kills a gateway and starts it
 * again. Arguments: REGION_FILE REGION LOCAL_RANK.
 */
#include "check.h"

/* Steps to count. */
#define STEPS 6
/* Elements of each collective: 1 MiB. */
#define COUNT 131072

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

/* Recovers, and checks that all ranks have finished the same steps. */
static void recover(landbridge_group *group, int64_t finished)
{
    int64_t least = finished, most = finished;
    landbridge_info info = LANDBRIDGE_INFO;
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
}

int main(int arguments, char **argument)
{
    landbridge_group *group;
    void *memory = NULL;
    int64_t step = 1, *given, *sums;
    int recoveries = 0;
    CHECK(arguments == 4);
    group = connect_rank(argument[1], argument[2], argument[3]);
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
        recover(group, step - 1);
    }
    CHECK(recoveries > 0);
    OK(landbridge_free(group, memory, &error));
    landbridge_close(group);
    return 0;
}
