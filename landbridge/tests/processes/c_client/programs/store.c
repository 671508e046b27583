/*
 * One of three ranks that share the store of their job. Arguments: REGION_FILE REGION LOCAL_RANK.
 */
#include "check.h"

#include <math.h>
#include <pthread.h>

/* Ranks of the job. */
#define RANKS 3
/* How long to wait for the store, in seconds. */
#define TIMEOUT_S 60.0
/* Ends the program unless an argument is refused. */
#define REFUSED(call) EXPECT(LANDBRIDGE_INVALID_ARGUMENT, call)

static landbridge_group *job;
static uint32_t rank;

/* Waits for all ranks. */
static void meet(void)
{
    OK(landbridge_barrier(job, NULL, NULL, &error));
}

/* Checks one of some values. */
static void check_value(const landbridge_store_values *values, size_t at, const void *wanted, size_t bytes)
{
    size_t found = 77;
    const char *value = landbridge_store_value(values, at, &found);
    CHECK(value != NULL && found == bytes && memcmp(value, wanted, bytes) == 0 && value[found] == 0);
}

/* Checks the only value, and frees it. */
static void check_only(landbridge_store_values *values, const void *wanted, size_t bytes)
{
    CHECK(landbridge_store_values_count(values) == 1);
    check_value(values, 0, wanted, bytes);
    landbridge_store_values_free(values);
}

/* Checks the value of a key, which may be set later. */
static void check_key(const char *key, const void *wanted, size_t bytes)
{
    landbridge_store_values *values = NULL;
    OK(landbridge_store_get(job, key, TIMEOUT_S, &values, &error));
    check_only(values, wanted, bytes);
}

/* Rank 1 sets what the others wait for: any bytes, none, and as many as there may be. */
static void set_and_get(void)
{
    static char most[LANDBRIDGE_STORE_VALUE_BYTES_MAX];
    static const char bytes[] = {0, 1, (char)0xff, 0};
    size_t found = 77;
    memset(most, 'x', sizeof most);
    if (rank == 1) {
        OK(landbridge_store_set(job, "bytes", bytes, sizeof bytes, TIMEOUT_S, &error));
        OK(landbridge_store_set(job, "none", NULL, 0, TIMEOUT_S, &error));
        OK(landbridge_store_set(job, "most", most, sizeof most, TIMEOUT_S, &error));
    }
    check_key("most", most, sizeof most);
    check_key("bytes", bytes, sizeof bytes);
    check_key("none", "", 0);
    CHECK(landbridge_store_values_count(NULL) == 0);
    CHECK(landbridge_store_value(NULL, 0, &found) == NULL && found == 0);
    landbridge_store_values_free(NULL);
}

/* Sets several keys at once, and asks for several. */
static void use_lists(void)
{
    static const char *const keys[] = {"list/b", "list/\xc3\xa9", "list/a"};
    const void *given[] = {"two", NULL, "1"};
    static const size_t bytes[] = {3, 0, 1};
    landbridge_store_values *values = NULL;
    int all_exist = 7, existed = 7;
    int64_t before = 0, after = 0;
    size_t found = 77;
    meet();
    if (rank == 2) {
        OK(landbridge_store_num_keys(job, TIMEOUT_S, &before, &error));
        OK(landbridge_store_check(job, keys, 3, TIMEOUT_S, &all_exist, &error));
        CHECK(all_exist == 0);
        OK(landbridge_store_multi_set(job, keys, given, bytes, 3, TIMEOUT_S, &error));
        OK(landbridge_store_num_keys(job, TIMEOUT_S, &after, &error));
        CHECK(after == before + 3);
    }
    OK(landbridge_store_wait(job, keys, 3, TIMEOUT_S, &error));
    OK(landbridge_store_check(job, keys, 3, TIMEOUT_S, &all_exist, &error));
    CHECK(all_exist == 1);
    OK(landbridge_store_multi_get(job, keys, 3, TIMEOUT_S, &values, &error));
    CHECK(landbridge_store_values_count(values) == 3);
    check_value(values, 0, "two", 3);
    check_value(values, 1, "", 0);
    check_value(values, 2, "1", 1);
    CHECK(landbridge_store_value(values, 3, &found) == NULL && found == 0);
    landbridge_store_values_free(values);
    OK(landbridge_store_list_keys(job, "list/", TIMEOUT_S, &values, &error));
    CHECK(landbridge_store_values_count(values) == 3);
    CHECK(strcmp(landbridge_store_value(values, 0, NULL), "list/a") == 0);
    CHECK(strcmp(landbridge_store_value(values, 2, NULL), keys[1]) == 0);
    landbridge_store_values_free(values);
    OK(landbridge_store_list_keys(job, "nobody's", TIMEOUT_S, &values, &error));
    CHECK(values != NULL && landbridge_store_values_count(values) == 0);
    landbridge_store_values_free(values);
    meet();
    if (rank == 2) {
        OK(landbridge_store_delete_key(job, "list/a", TIMEOUT_S, &existed, &error));
        CHECK(existed == 1);
        OK(landbridge_store_delete_key(job, "list/a", TIMEOUT_S, &existed, &error));
        CHECK(existed == 0);
        OK(landbridge_store_delete_key(job, "list/a", TIMEOUT_S, NULL, &error));
    }
}

/* Counts together, takes turns, and appends. */
static void change_together(void)
{
    landbridge_store_values *values = NULL;
    int64_t sum = 0, length = 0;
    int round, winners;
    char mine = (char)('a' + rank);
    for (round = 0; round < 10; round++) {
        OK(landbridge_store_add(job, "counter", 2, TIMEOUT_S, &sum, &error));
        CHECK(sum > 0 && sum <= 60);
    }
    OK(landbridge_store_append(job, "letters", &mine, 1, TIMEOUT_S, &error));
    OK(landbridge_store_compare_set(job, "winner", NULL, 0, &mine, 1, TIMEOUT_S, &values, &error));
    winners = *(const char *)landbridge_store_value(values, 0, NULL) == mine;
    landbridge_store_values_free(values);
    OK(landbridge_store_add(job, "winners", winners, TIMEOUT_S, NULL, &error));
    meet();
    OK(landbridge_store_add(job, "counter", 0, TIMEOUT_S, &sum, &error));
    CHECK(sum == 60);
    check_key("counter", "60", 2);
    check_key("winners", "1", 1);
    OK(landbridge_store_get(job, "letters", TIMEOUT_S, &values, &error));
    CHECK(strlen(landbridge_store_value(values, 0, NULL)) == RANKS);
    landbridge_store_values_free(values);
    OK(landbridge_store_compare_set(job, "counter", "59", 2, "0", 1, TIMEOUT_S, &values, &error));
    check_only(values, "60", 2);
    EXPECT(LANDBRIDGE_STORE_REFUSED, landbridge_store_add(job, "letters", 1, TIMEOUT_S, &length, &error));
    CHECK(length == 0);
}

/* Takes an item that is pushed later, for a thread. */
static void *take(void *unused)
{
    landbridge_store_values *values = NULL;
    OK(landbridge_store_queue_pop(job, "work", TIMEOUT_S, &values, &error));
    check_only(values, "item", 5);
    return unused;
}

/* Takes items from a queue: a thread of rank 0 waits, while the rank uses the store and the job. */
static void use_queues(void)
{
    landbridge_store_values *values = NULL;
    pthread_t thread;
    int64_t length = 7;
    if (rank == 0) {
        CHECK(pthread_create(&thread, NULL, take, NULL) == 0);
        check_key("none", "", 0);
    }
    meet();
    if (rank == 2) {
        OK(landbridge_store_queue_push(job, "work", "item", 5, TIMEOUT_S, NULL, &error));
    }
    if (rank == 0) {
        CHECK(pthread_join(thread, NULL) == 0);
        OK(landbridge_store_queue_len(job, "work", TIMEOUT_S, &length, &error));
        CHECK(length == 0);
        OK(landbridge_store_queue_try_pop(job, "work", TIMEOUT_S, &values, &error));
        CHECK(values != NULL && landbridge_store_values_count(values) == 0);
        landbridge_store_values_free(values);
        OK(landbridge_store_queue_push(job, "own", NULL, 0, TIMEOUT_S, &length, &error));
        CHECK(length == 1);
        OK(landbridge_store_queue_push(job, "own", "b", 1, TIMEOUT_S, &length, &error));
        CHECK(length == 2);
        OK(landbridge_store_queue_try_pop(job, "own", TIMEOUT_S, &values, &error));
        check_only(values, "", 0);
        OK(landbridge_store_queue_pop(job, "own", TIMEOUT_S, &values, &error));
        check_only(values, "b", 1);
    }
}

/* Waits for what never comes, and passes arguments that cannot be used. */
static void fail(void)
{
    static char text[LANDBRIDGE_STORE_KEY_BYTES_MAX + 2];
    static const char *const missing[] = {"none", "missing"}, *const holes[] = {"none", NULL};
    landbridge_store_values *values = (landbridge_store_values *)&values;
    const void *given[] = {"a", NULL};
    size_t bytes[] = {1, 1};
    int all_exist = 7;
    int64_t number = 7;
    memset(text, 'k', LANDBRIDGE_STORE_KEY_BYTES_MAX + 1);
    EXPECT(LANDBRIDGE_STORE_TIMED_OUT, landbridge_store_get(job, "missing", 0.05, &values, &error));
    CHECK(values == NULL);
    EXPECT(LANDBRIDGE_STORE_TIMED_OUT, landbridge_store_wait(job, missing, 2, 0.05, &error));
    EXPECT(LANDBRIDGE_STORE_TIMED_OUT, landbridge_store_queue_pop(job, "missing", 0.2, &values, &error));
    REFUSED(landbridge_store_set(NULL, "key", "a", 1, TIMEOUT_S, &error));
    REFUSED(landbridge_store_set(job, NULL, "a", 1, TIMEOUT_S, &error));
    REFUSED(landbridge_store_set(job, "", "a", 1, TIMEOUT_S, &error));
    REFUSED(landbridge_store_set(job, text, "a", 1, TIMEOUT_S, &error));
    REFUSED(landbridge_store_set(job, "\xff", "a", 1, TIMEOUT_S, &error));
    REFUSED(landbridge_store_set(job, "key", NULL, 1, TIMEOUT_S, &error));
    REFUSED(landbridge_store_set(job, "key", "a", (size_t)-1, TIMEOUT_S, &error));
    REFUSED(landbridge_store_set(job, "key", "a", 1, -1.0, &error));
    REFUSED(landbridge_store_set(job, "key", "a", 1, NAN, &error));
    REFUSED(landbridge_store_get(job, "key", TIMEOUT_S, NULL, &error));
    REFUSED(landbridge_store_multi_get(job, NULL, 1, TIMEOUT_S, &values, &error));
    REFUSED(landbridge_store_multi_get(job, missing, 0, TIMEOUT_S, &values, &error));
    REFUSED(landbridge_store_multi_get(job, missing, (size_t)-1, TIMEOUT_S, &values, &error));
    REFUSED(landbridge_store_check(job, holes, 2, TIMEOUT_S, &all_exist, &error));
    REFUSED(landbridge_store_check(job, missing, 2, TIMEOUT_S, NULL, &error));
    REFUSED(landbridge_store_multi_set(job, missing, given, bytes, 2, TIMEOUT_S, &error));
    REFUSED(landbridge_store_multi_set(job, missing, given, NULL, 2, TIMEOUT_S, &error));
    REFUSED(landbridge_store_num_keys(job, TIMEOUT_S, NULL, &error));
    REFUSED(landbridge_store_queue_len(job, NULL, TIMEOUT_S, &number, &error));
    CHECK(values == NULL && all_exist == 7 && number == 7);
    OK(landbridge_store_check(job, missing, 2, TIMEOUT_S, &all_exist, &error));
    CHECK(all_exist == 0);
}

int main(int arguments, char **argument)
{
    static const uint32_t ranks[] = {0, 2};
    landbridge_info info = LANDBRIDGE_INFO;
    landbridge_group *pair = NULL;
    landbridge_store_values *values = NULL;
    CHECK(arguments == 4);
    job = connect_rank(argument[1], argument[2], argument[3]);
    OK(landbridge_get_info(job, &info, &error));
    CHECK(info.size == RANKS);
    rank = info.rank;
    set_and_get();
    use_lists();
    change_together();
    use_queues();
    fail();
    /* Every group of the rank leads to the one store, also after the job was closed. */
    OK(landbridge_new_group(job, ranks, 2, TIMEOUT_S, &pair, &error));
    meet();
    landbridge_close(job);
    if (pair != NULL) {
        OK(landbridge_store_get(pair, "counter", TIMEOUT_S, &values, &error));
        landbridge_close(pair);
        /* Values outlive their group. */
        check_only(values, "60", 2);
    }
    printf("rank %u is done\n", (unsigned)rank);
    return 0;
}
