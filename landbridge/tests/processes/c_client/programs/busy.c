/*
 * Ranks in one process that ask more of the store than their gateway lets wait. Arguments: the sockets
 * of both gateways, the job and its token file.
 */
#include "check.h"

#include <pthread.h>
#include <time.h>

/* Ranks of the first gateway; the second has one more. */
#define RANKS 6
/* Requests of each rank, as many of those that wait as may be under way. */
#define REQUESTS 112
/* Keys of each request: all requests together have more than 32 MiB of them. */
#define KEYS 55
/* How long to wait for anything, in seconds. */
#define TIMEOUT_S 120.0

static char texts[KEYS][LANDBRIDGE_STORE_KEY_BYTES_MAX];
static const char *keys[KEYS];
static landbridge_group *groups[RANKS + 1];
static char **arguments;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int refused, answered;

/* Attaches a rank. */
static void *attach(void *number)
{
    size_t rank = (size_t)((landbridge_group **)number - groups);
    landbridge_connect_options options = LANDBRIDGE_CONNECT_OPTIONS;
    options.socket = arguments[rank < RANKS ? 1 : 2];
    options.job = arguments[3];
    options.token_file = arguments[4];
    options.rank = (uint32_t)rank;
    options.arena_bytes = 1 << 20;
    options.timeout_s = TIMEOUT_S;
    OK(landbridge_connect(&options, &groups[rank], &error));
    return NULL;
}

/* Waits for keys that are set once the gateway has refused a request. */
static void *wait_for_keys(void *group)
{
    landbridge_error error;
    landbridge_status status = landbridge_store_wait(group, keys, KEYS, TIMEOUT_S, &error);
    CHECK(status == LANDBRIDGE_OK || status == LANDBRIDGE_STORE_BUSY);
    CHECK(status == LANDBRIDGE_OK || strstr(error.text, "wait at this gateway already") != NULL);
    CHECK(pthread_mutex_lock(&mutex) == 0);
    *(status == LANDBRIDGE_OK ? &answered : &refused) += 1;
    CHECK(pthread_mutex_unlock(&mutex) == 0);
    return NULL;
}

/* Returns the number of requests that the gateway has refused so far. */
static int refused_so_far(void)
{
    int count;
    CHECK(pthread_mutex_lock(&mutex) == 0);
    count = refused;
    CHECK(pthread_mutex_unlock(&mutex) == 0);
    return count;
}

int main(int count, char **argument)
{
    static pthread_t threads[RANKS * REQUESTS], attaching[RANKS + 1];
    static const void *values[KEYS];
    static const size_t bytes[KEYS];
    static const struct timespec pause = {0, 10000000};
    int at, tries, all_exist = 7;
    CHECK(count == 5);
    arguments = argument;
    for (at = 0; at < KEYS; at++) {
        memset(texts[at], 'k', sizeof texts[at] - 1);
        snprintf(texts[at], sizeof texts[at], "%03d", at);
        texts[at][3] = '/';
        keys[at] = texts[at];
    }
    for (at = 0; at <= RANKS; at++) {
        CHECK(pthread_create(&attaching[at], NULL, attach, &groups[at]) == 0);
    }
    for (at = 0; at <= RANKS; at++) {
        CHECK(pthread_join(attaching[at], NULL) == 0);
    }
    for (at = 0; at < RANKS * REQUESTS; at++) {
        CHECK(pthread_create(&threads[at], NULL, wait_for_keys, groups[at / REQUESTS]) == 0);
    }
    for (tries = 0; refused_so_far() == 0; tries++) {
        CHECK(tries < 6000);
        CHECK(nanosleep(&pause, NULL) == 0);
    }
    OK(landbridge_store_check(groups[RANKS], keys, KEYS, TIMEOUT_S, &all_exist, &error));
    CHECK(all_exist == 0);
    OK(landbridge_store_multi_set(groups[RANKS], keys, values, bytes, KEYS, TIMEOUT_S, &error));
    for (at = 0; at < RANKS * REQUESTS; at++) {
        CHECK(pthread_join(threads[at], NULL) == 0);
    }
    CHECK(refused > 0 && answered > RANKS * REQUESTS / 2 && refused + answered == RANKS * REQUESTS);
    /* There is room again. */
    OK(landbridge_store_wait(groups[0], keys, KEYS, TIMEOUT_S, &error));
    for (at = 0; at <= RANKS; at++) {
        landbridge_close(groups[at]);
    }
    printf("some were refused\n");
    return 0;
}
