/*
 * One rank that all-reduces an array with all other ranks, and checks the mean.
 *
 *     cc -std=c99 -o all_reduce all_reduce.c $(pkg-config --cflags --libs landbridge)
 *     ./all_reduce /etc/landbridge/region.toml east 0
 *
 * Start one for each rank of the fabric, in any order; the gateways run already.
 */
#include <landbridge.h>

#include <stdio.h>
#include <stdlib.h>

/* Elements of the array: 4 MiB. */
#define COUNT 1048576

/* Prints the failure of a call, and returns the exit code for it. */
static int fail(const char *what, const landbridge_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error->text);
    return EXIT_FAILURE;
}

/* Trains one step: exchanges the gradients, waits until every region has them, and checks them. */
static int train(landbridge_group *group, float *gradients)
{
    landbridge_info info = LANDBRIDGE_INFO;
    landbridge_error error;
    float mean;
    size_t at;

    if (landbridge_get_info(group, &info, &error) != LANDBRIDGE_OK) {
        return fail("info", &error);
    }
    for (at = 0; at < COUNT; at++) {
        gradients[at] = (float)(info.rank + 1);
    }
    if (landbridge_all_reduce(gradients, gradients, COUNT, LANDBRIDGE_F32, LANDBRIDGE_AVG, group, NULL,
                              NULL, &error) != LANDBRIDGE_OK) {
        return fail("all_reduce", &error);
    }
    if (landbridge_commit(group, 1, NULL, NULL, &error) != LANDBRIDGE_OK) {
        return fail("commit", &error);
    }
    mean = (float)(info.size + 1) / 2;
    for (at = 0; at < COUNT; at++) {
        if (gradients[at] != mean) {
            fprintf(stderr, "element %zu is %g, not %g\n", at, (double)gradients[at], (double)mean);
            return EXIT_FAILURE;
        }
    }
    printf("rank %u of %u has the mean %g\n", (unsigned)info.rank, (unsigned)info.size, (double)mean);
    return EXIT_SUCCESS;
}

int main(int arguments, char **argument)
{
    landbridge_connect_options options = LANDBRIDGE_CONNECT_OPTIONS;
    landbridge_group *group = NULL;
    landbridge_error error;
    float *gradients;
    int code;

    if (arguments != 4) {
        fprintf(stderr, "usage: all_reduce REGION_FILE REGION LOCAL_RANK\n");
        return EXIT_FAILURE;
    }
    options.config = argument[1];
    options.region = argument[2];
    options.local_rank = (uint32_t)strtoul(argument[3], NULL, 10);
    options.arena_bytes = 16 << 20;
    gradients = malloc(COUNT * sizeof *gradients);
    if (gradients == NULL) {
        fprintf(stderr, "no memory\n");
        return EXIT_FAILURE;
    }
    if (landbridge_connect(&options, &group, &error) == LANDBRIDGE_OK) {
        code = train(group, gradients);
    } else {
        code = fail("connect", &error);
    }
    landbridge_close(group);
    free(gradients);
    return code;
}
