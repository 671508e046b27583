/*
 * A rank that attaches over TLS. First it meets a wrong CA and a wrong token, which are refused; then it
 * sums with the other rank. Arguments: ADDRESS CA WRONG_CA TOKEN_FILE RANK.
 */
#include "check.h"

int main(int arguments, char **argument)
{
    static const unsigned char guessed[LANDBRIDGE_TOKEN_BYTES] = {7};
    landbridge_connect_options options = LANDBRIDGE_CONNECT_OPTIONS;
    landbridge_group *group = NULL;
    landbridge_error error;
    landbridge_info info = LANDBRIDGE_INFO;
    float *values, sum = 0.0f;
    size_t at, count = 300007;
    CHECK(arguments == 6);
    options.address = argument[1];
    options.job = "train";
    options.rank = (uint32_t)strtoul(argument[5], NULL, 10);
    options.arena_bytes = 16 << 20;
    options.timeout_s = 120.0;

    options.ca = argument[3];
    options.token_file = argument[4];
    CHECK(landbridge_connect(&options, &group, &error) == LANDBRIDGE_ACCESS_DENIED && group == NULL);
    CHECK(strstr(error.text, "is `ca` the CA of this gateway's deployment?") != NULL);

    options.ca = argument[2];
    options.token_file = NULL;
    options.token = guessed;
    CHECK(landbridge_connect(&options, &group, &error) == LANDBRIDGE_REFUSED && group == NULL);
    CHECK(strstr(error.text, "token") != NULL);

    options.token = NULL;
    options.token_file = argument[4];
    OK(landbridge_connect(&options, &group, &error));
    OK(landbridge_get_info(group, &info, &error));
    CHECK(info.size == 2 && info.rank == options.rank);
    values = malloc(count * sizeof *values);
    CHECK(values != NULL);
    for (at = 0; at < count; at++) {
        values[at] = (float)(at % 100) + (float)info.rank;
    }
    OK(landbridge_all_reduce(values, values, count, LANDBRIDGE_F32, LANDBRIDGE_SUM, group, NULL, NULL,
                             &error));
    for (at = 0; at < count; at++) {
        CHECK(values[at] == 2.0f * (float)(at % 100) + 1.0f);
    }
    /* After the loss of the connection's epoch a rank attaches again by the same address. */
    OK(landbridge_recover(group, 60.0, &error));
    sum = 1.0f;
    OK(landbridge_all_reduce(&sum, &sum, 1, LANDBRIDGE_F32, LANDBRIDGE_SUM, group, NULL, NULL, &error));
    CHECK(sum == 2.0f);
    free(values);
    landbridge_close(group);
    printf("rank %s is done\n", argument[5]);
    return 0;
}
