/*
 * One rank that sends records of its own to all other ranks, more to some than to others, as tokens go
 * to the experts of a model. It sends them back, and checks that they are the same.
 *
 *     cc -std=c99 -o all_to_all all_to_all.c $(pkg-config --cflags --libs landbridge)
 *     ./all_to_all /etc/landbridge/region.toml east 0
 *
 * Start one for each rank of the fabric, in any order; the gateways run already.
 */
#include <landbridge.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most ranks of the fabric. */
#define RANKS_MAX 64

/* A record: any structure without pointers. */
typedef struct record {
    uint32_t from;
    uint32_t to;
    double value;
} record;

/* Prints the failure of a call, and returns the exit code for it. */
static int fail(const char *what, const landbridge_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error->text);
    return EXIT_FAILURE;
}

/* Returns the number of records from one rank to another, which every rank can compute here. */
static size_t records_between(uint32_t from, uint32_t to)
{
    return (size_t)(from * 7 + to * 3) % 5 * 100;
}

/* Exchanges the records, and then exchanges them back. */
static int exchange(landbridge_group *group, const landbridge_info *info)
{
    size_t sent[RANKS_MAX], received[RANKS_MAX];
    size_t out = 0, in = 0, at, next = 0;
    landbridge_error error;
    record *given, *got, *back;
    uint32_t other;
    int code = EXIT_FAILURE;

    for (other = 0; other < info->size; other++) {
        /* In bytes, because a record is no number. */
        sent[other] = records_between(info->rank, other) * sizeof *given;
        received[other] = records_between(other, info->rank) * sizeof *given;
        out += records_between(info->rank, other);
        in += records_between(other, info->rank);
    }
    given = calloc(out + 1, sizeof *given);
    back = calloc(out + 1, sizeof *back);
    got = calloc(in + 1, sizeof *got);
    if (given == NULL || back == NULL || got == NULL) {
        fprintf(stderr, "no memory\n");
        goto end;
    }
    for (other = 0; other < info->size; other++) {
        for (at = 0; at < records_between(info->rank, other); at++, next++) {
            given[next].from = info->rank;
            given[next].to = other;
            given[next].value = (double)at;
        }
    }
    if (landbridge_all_to_all_v(given, sent, got, received, LANDBRIDGE_U8, group, NULL, NULL,
                                &error) != LANDBRIDGE_OK) {
        fail("all_to_all_v", &error);
        goto end;
    }
    for (at = 0; at < in; at++) {
        if (got[at].to != info->rank) {
            fprintf(stderr, "record %zu is for rank %u\n", at, (unsigned)got[at].to);
            goto end;
        }
    }
    if (landbridge_all_to_all_v(got, received, back, sent, LANDBRIDGE_U8, group, NULL, NULL,
                                &error) != LANDBRIDGE_OK) {
        fail("all_to_all_v", &error);
        goto end;
    }
    if (memcmp(given, back, out * sizeof *given) != 0) {
        fprintf(stderr, "other records came back\n");
        goto end;
    }
    printf("rank %u of %u sent %zu records, got %zu, and has its own back\n", (unsigned)info->rank,
           (unsigned)info->size, out, in);
    code = EXIT_SUCCESS;
end:
    free(given);
    free(got);
    free(back);
    return code;
}

int main(int arguments, char **argument)
{
    landbridge_connect_options options = LANDBRIDGE_CONNECT_OPTIONS;
    landbridge_info info = LANDBRIDGE_INFO;
    landbridge_group *group = NULL;
    landbridge_error error;
    int code;

    if (arguments != 4) {
        fprintf(stderr, "usage: all_to_all REGION_FILE REGION LOCAL_RANK\n");
        return EXIT_FAILURE;
    }
    options.config = argument[1];
    options.region = argument[2];
    options.local_rank = (uint32_t)strtoul(argument[3], NULL, 10);
    options.arena_bytes = 16 << 20;
    if (landbridge_connect(&options, &group, &error) != LANDBRIDGE_OK) {
        code = fail("connect", &error);
    } else if (landbridge_get_info(group, &info, &error) != LANDBRIDGE_OK) {
        code = fail("info", &error);
    } else if (info.size > RANKS_MAX) {
        fprintf(stderr, "%u ranks; at most %d\n", (unsigned)info.size, RANKS_MAX);
        code = EXIT_FAILURE;
    } else {
        code = exchange(group, &info);
    }
    landbridge_close(group);
    return code;
}
