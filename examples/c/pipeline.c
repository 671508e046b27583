/*
 * One stage of a pipeline over all ranks. Each micro-batch passes from rank to rank, and each rank adds
 * its layer to it. The last rank puts what it has computed into the store, where the first one reads it.
 * Only neighbours exchange data: a link carries each micro-batch once, and a rank computes on one
 * micro-batch while the next one is on its way.
 *
 *     cc -std=c99 -o pipeline pipeline.c $(pkg-config --cflags --libs landbridge)
 *     ./pipeline /etc/landbridge/region.toml east 0
 *
 * Start one for each rank of the fabric, in any order; the gateways run already.
 */
#include <landbridge.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Micro-batches of a step. */
#define BATCHES 8
/* Elements of a micro-batch: 1 MiB. */
#define COUNT 262144
/* The tag of micro-batches. */
#define TAG 1
/* The key of the sum of all elements that left the last stage. */
#define KEY "pipeline/sum"

static float batches[BATCHES][COUNT];

/* Prints the failure of a call, and returns the exit code for it. */
static int fail(const char *what, const landbridge_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error->text);
    return EXIT_FAILURE;
}

/* Adds the layer of a stage to a micro-batch. */
static void compute(float *batch, uint32_t stage)
{
    size_t at;
    for (at = 0; at < COUNT; at++) {
        batch[at] += (float)(stage + 1);
    }
}

/* Returns the sum of all micro-batches here. */
static double sum_batches(void)
{
    double sum = 0;
    size_t batch, at;
    for (batch = 0; batch < BATCHES; batch++) {
        for (at = 0; at < COUNT; at++) {
            sum += batches[batch][at];
        }
    }
    return sum;
}

/* Runs one step of a stage: receives, computes and sends each micro-batch. */
static int run_stage(landbridge_group *group, const landbridge_info *info)
{
    landbridge_operation *received[BATCHES] = {NULL}, *sent[BATCHES] = {NULL};
    landbridge_error error;
    int batch, code = EXIT_SUCCESS;

    for (batch = 0; batch < BATCHES && info->rank > 0 && code == EXIT_SUCCESS; batch++) {
        if (landbridge_receive(batches[batch], COUNT, LANDBRIDGE_F32, info->rank - 1, TAG, group, NULL,
                               &received[batch], &error) != LANDBRIDGE_OK) {
            code = fail("receive", &error);
        }
    }
    for (batch = 0; batch < BATCHES && code == EXIT_SUCCESS; batch++) {
        if (received[batch] != NULL &&
            landbridge_wait(received[batch], INFINITY, &error) != LANDBRIDGE_OK) {
            code = fail("receive", &error);
            break;
        }
        compute(batches[batch], info->rank);
        if (info->rank + 1 < info->size &&
            landbridge_send(batches[batch], COUNT, LANDBRIDGE_F32, info->rank + 1, TAG, group, NULL,
                            &sent[batch], &error) != LANDBRIDGE_OK) {
            code = fail("send", &error);
        }
    }
    for (batch = 0; batch < BATCHES; batch++) {
        if (code == EXIT_SUCCESS && sent[batch] != NULL &&
            landbridge_wait(sent[batch], INFINITY, &error) != LANDBRIDGE_OK) {
            code = fail("send", &error);
        }
        landbridge_operation_free(received[batch]);
        landbridge_operation_free(sent[batch]);
    }
    return code;
}

/* Has the first stage read what the last one has computed. */
static int check_sum(landbridge_group *group, const landbridge_info *info)
{
    landbridge_store_values *values = NULL;
    landbridge_error error;
    char text[32];
    double sum;
    int length;

    if (info->rank + 1 == info->size) {
        length = snprintf(text, sizeof text, "%.17g", sum_batches());
        if (landbridge_store_set(group, KEY, text, (size_t)length, LANDBRIDGE_STORE_TIMEOUT_S, &error) !=
            LANDBRIDGE_OK) {
            return fail("store_set", &error);
        }
    }
    if (landbridge_store_get(group, KEY, LANDBRIDGE_DEFAULT_TIMEOUT_S, &values, &error) !=
        LANDBRIDGE_OK) {
        return fail("store_get", &error);
    }
    sum = strtod(landbridge_store_value(values, 0, NULL), NULL);
    landbridge_store_values_free(values);
    if (sum != (double)BATCHES * COUNT * info->size * (info->size + 1) / 2) {
        fprintf(stderr, "the sum of all stages is %g\n", sum);
        return EXIT_FAILURE;
    }
    printf("stage %u of %u: the sum is %g\n", (unsigned)info->rank, (unsigned)info->size, sum);
    return EXIT_SUCCESS;
}

int main(int arguments, char **argument)
{
    landbridge_connect_options options = LANDBRIDGE_CONNECT_OPTIONS;
    landbridge_info info = LANDBRIDGE_INFO;
    landbridge_group *group = NULL;
    landbridge_error error;
    int code;

    if (arguments != 4) {
        fprintf(stderr, "usage: pipeline REGION_FILE REGION LOCAL_RANK\n");
        return EXIT_FAILURE;
    }
    options.config = argument[1];
    options.region = argument[2];
    options.local_rank = (uint32_t)strtoul(argument[3], NULL, 10);
    options.arena_bytes = 2 * sizeof batches;
    if (landbridge_connect(&options, &group, &error) != LANDBRIDGE_OK) {
        code = fail("connect", &error);
    } else if (landbridge_get_info(group, &info, &error) != LANDBRIDGE_OK) {
        code = fail("info", &error);
    } else {
        code = run_stage(group, &info);
        if (code == EXIT_SUCCESS) {
            code = check_sum(group, &info);
        }
        /* Each rank stays until all have read the sum. */
        if (code == EXIT_SUCCESS && landbridge_barrier(group, NULL, NULL, &error) != LANDBRIDGE_OK) {
            code = fail("barrier", &error);
        }
    }
    landbridge_close(group);
    return code;
}
