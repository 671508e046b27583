/* Checks of test programs: the first that fails ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <landbridge.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program unless a condition holds. */
#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
            exit(EXIT_FAILURE);                                                \
        }                                                                      \
    } while (0)

/* Ends the program unless a call, which writes to `error`, returns a status. */
#define EXPECT(wanted, call)                                                                     \
    do {                                                                                         \
        landbridge_error error;                                                                  \
        landbridge_status had = (call);                                                          \
        if (had != (wanted)) {                                                                   \
            fprintf(stderr, "%s:%d: %s: status %d: %s\n", __FILE__, __LINE__, #call, (int)had,   \
                    error.text);                                                                 \
            exit(EXIT_FAILURE);                                                                  \
        }                                                                                        \
        CHECK(error.status == had && (error.text[0] == 0) == (had == LANDBRIDGE_OK));            \
    } while (0)

/* Ends the program unless a call succeeds. */
#define OK(call) EXPECT(LANDBRIDGE_OK, call)

/* Connects a rank by its region file. */
static inline landbridge_group *connect_rank(const char *config, const char *region, const char *number)
{
    landbridge_connect_options options = LANDBRIDGE_CONNECT_OPTIONS;
    landbridge_group *group = NULL;
    options.config = config;
    options.region = region;
    options.local_rank = (uint32_t)strtoul(number, NULL, 10);
    options.arena_bytes = 8 << 20;
    options.timeout_s = 120.0;
    OK(landbridge_connect(&options, &group, &error));
    return group;
}

#endif
