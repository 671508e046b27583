/*
 * A rank whose gateways do not meet at first, and of which one is stopped later. It prints a word after
 * each part, and waits for a line before the next one. Arguments: REGION_FILE REGION LOCAL_RANK.
 */
#include "check.h"

/* Tells the test how far the rank is, and waits for its line. */
static void tell(const char *word)
{
    printf("%s\n", word);
    fflush(stdout);
    CHECK(getchar() == '\n');
}

/* Attaches while the other gateway is not there. */
static void connect_alone(const char *config, const char *region, const char *number)
{
    landbridge_connect_options options = LANDBRIDGE_CONNECT_OPTIONS;
    landbridge_group *group = (landbridge_group *)&options;
    options.config = config;
    options.region = region;
    options.local_rank = (uint32_t)strtoul(number, NULL, 10);
    options.arena_bytes = 1 << 20;
    options.timeout_s = 1.0;
    EXPECT(LANDBRIDGE_NO_EPOCH, landbridge_connect(&options, &group, &error));
    CHECK(group == NULL);
}

int main(int arguments, char **argument)
{
    static const uint32_t ranks[] = {0, 1};
    const char *key = "key";
    landbridge_store_values *values = NULL;
    landbridge_group *group, *made;
    CHECK(arguments == 4);
    connect_alone(argument[1], argument[2], argument[3]);
    tell("alone");
    group = connect_rank(argument[1], argument[2], argument[3]);
    made = group;
    OK(landbridge_store_set(group, key, "early", 5, 60.0, &error));
    tell("met");
    /* The other gateway is stopped: it may take the change later, and it knows of no group. */
    EXPECT(LANDBRIDGE_NO_EPOCH, landbridge_new_group_with_tag(group, ranks, 2, 1, 0.5, &made, &error));
    CHECK(made == NULL);
    EXPECT(LANDBRIDGE_STORE_UNCONFIRMED, landbridge_store_set(group, key, "late", 4, 1.0, &error));
    tell("stopped");
    /* It goes on, and the change is made after all. */
    OK(landbridge_store_append(group, key, "r", 1, 60.0, &error));
    OK(landbridge_store_get(group, key, 60.0, &values, &error));
    CHECK(strcmp(landbridge_store_value(values, 0, NULL), "later") == 0);
    landbridge_store_values_free(values);
    OK(landbridge_new_group_with_tag(group, ranks, 2, 2, 60.0, &made, &error));
    landbridge_close(made);
    landbridge_close(group);
    printf("done\n");
    return 0;
}
