/*
 * One of two ranks that writes its flight recorder, by a call and by a failure. Arguments: REGION_FILE REGION
 * FOLDER.
 */
#include "check.h"

/* Room for a path. */
#define PATH_BYTES 4096

/* Connects the first rank of a region, whose failures are dumped into a folder. */
static landbridge_group *connect_with_dumps(const char *config, const char *region, const char *folder)
{
    landbridge_connect_options options = LANDBRIDGE_CONNECT_OPTIONS;
    landbridge_group *group = NULL;
    options.config = config;
    options.region = region;
    options.local_rank = 0;
    options.arena_bytes = 1 << 20;
    options.timeout_s = 120.0;
    options.dumps = folder;
    OK(landbridge_connect(&options, &group, &error));
    return group;
}

/* Passes arguments that cannot be used. */
static void misuse(const landbridge_group *group, const char *folder)
{
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT, landbridge_dump(NULL, folder, &error));
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT, landbridge_dump(group, NULL, &error));
    EXPECT(LANDBRIDGE_INVALID_ARGUMENT, landbridge_dump(group, "", &error));
    EXPECT(LANDBRIDGE_CONFIG, landbridge_dump(group, "/dev/null/dump.json", &error));
    /* A folder is there already. */
    EXPECT(LANDBRIDGE_CONFIG, landbridge_dump(group, folder, &error));
}

int main(int arguments, char **argument)
{
    float values[3] = {1, 2, 3};
    char path[PATH_BYTES], failures[PATH_BYTES];
    landbridge_group *group;
    CHECK(arguments == 4);
    snprintf(path, sizeof path, "%s/%s.json", argument[3], argument[2]);
    snprintf(failures, sizeof failures, "%s/%s-failures", argument[3], argument[2]);
    group = connect_with_dumps(argument[1], argument[2], failures);
    OK(landbridge_all_reduce(values, values, 3, LANDBRIDGE_F32, LANDBRIDGE_MAX, group, NULL, NULL, &error));
    OK(landbridge_dump(group, path, &error));
    misuse(group, argument[3]);
    if (strcmp(argument[2], "east") == 0) {
        landbridge_call_options options = LANDBRIDGE_CALL_OPTIONS;
        options.timeout_s = 0.1;
        EXPECT(LANDBRIDGE_RANKS_TIMED_OUT, landbridge_barrier(group, &options, NULL, &error));
        OK(landbridge_store_set(group, "failed", NULL, 0, 60.0, &error));
    } else {
        landbridge_store_values *failed = NULL;
        OK(landbridge_store_get(group, "failed", 60.0, &failed, &error));
        landbridge_store_values_free(failed);
    }
    landbridge_close(group);
    printf("%s is done\n", argument[2]);
    return 0;
}
