/*
 * landbridge.h: collectives across data centres, for programs in C (C99) and in languages that call C.
 *
 * A program attaches one or several ranks to the gateway on its host, by landbridge_connect. Ranks of
 * all data centres then post the same collectives in the same order. Each gets the result with the same
 * bits. examples/c/all_reduce.c in the source is a whole program.
 *
 *     landbridge_connect_options options = LANDBRIDGE_CONNECT_OPTIONS;
 *     landbridge_group *group = NULL;
 *     landbridge_error error;
 *     options.config = "/etc/landbridge/region.toml";
 *     options.region = "east";
 *     options.local_rank = 0;
 *     if (landbridge_connect(&options, &group, &error) != LANDBRIDGE_OK) {
 *         fprintf(stderr, "%s\n", error.text);
 *         return 1;
 *     }
 *     landbridge_all_reduce(gradients, gradients, count, LANDBRIDGE_F32, LANDBRIDGE_AVG, group, NULL,
 *                           NULL, &error);
 *     landbridge_close(group);
 *
 * BUILD. cc -std=c99 program.c $(pkg-config --cflags --libs landbridge)
 * With the static library: cc -std=c99 program.c liblandbridge.a -lm -lpthread -ldl
 *
 * ERRORS. Each function that can fail returns a landbridge_status. Its last argument is where to write
 * the text; NULL if nobody reads it. The library has no global state: nothing like errno is kept. After
 * a failure the outputs of the call are NULL or unchanged, unless its comment says otherwise.
 *
 * THREADS. Every function may be called from any thread, also at the same time with the same group or
 * operation, with two exceptions: landbridge_close and landbridge_operation_free end their handle, and
 * no other call with that handle may be running or follow. All ranks post in the same order; where
 * several threads post to one group, the program keeps their order. Groups know nothing of each other:
 * a thread that waits for one delays no other. No function may be called in a signal handler. The
 * library has one thread for each group, which takes no signals of the program.
 *
 * MEMORY. Buffers may lie anywhere. The contribution is read before a posting function returns. The
 * result is written only inside landbridge_wait, landbridge_test, or a call that waits itself. So an
 * operation that is freed early never writes to memory that is gone. Memory of landbridge_alloc is used
 * in place instead, without a copy; see there.
 *
 * FORK. A child of fork cannot use handles of its parent: calls return LANDBRIDGE_FORKED, and
 * landbridge_close and landbridge_operation_free do nothing. The child may connect itself. A child that
 * lives on without exec keeps its parent's connections open, so that gateways hear of the parent's end
 * only with that of the child.
 *
 * COMPATIBILITY. Numbers and structures of this header stay as they are within one soname. Structures
 * of options may grow at their end, and tell their size; so initialise them by their macros.
 */
#ifndef LANDBRIDGE_H
#define LANDBRIDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; landbridge_version has that of the library. */
#define LANDBRIDGE_VERSION_MAJOR 0
#define LANDBRIDGE_VERSION_MINOR 1
#define LANDBRIDGE_VERSION_PATCH 0

/* Bytes of the text of an error, with the 0 at its end. */
#define LANDBRIDGE_ERROR_TEXT_BYTES 1280
/* Bytes of a job's token. */
#define LANDBRIDGE_TOKEN_BYTES 32
/* Memory of landbridge_alloc begins at a multiple of this number of bytes. */
#define LANDBRIDGE_ALIGN_BYTES 64
/* 30 minutes in seconds: how long calls by default wait for other ranks, which may be writing a
 * checkpoint or restarting. */
#define LANDBRIDGE_DEFAULT_TIMEOUT_S 1800.0
/* 256 MiB: the default size of a group's arena. */
#define LANDBRIDGE_DEFAULT_ARENA_BYTES 268435456
/* No rank, where options ask for one. */
#define LANDBRIDGE_NO_RANK UINT32_MAX
/* No user, where options ask for the number of one. */
#define LANDBRIDGE_NO_USER UINT32_MAX

/* What a call returns. The numbers below 32 are the failures of a collective, as in docs/protocol.md;
 * after them the contribution is intact, and the result has no meaning. */
typedef enum landbridge_status {
    /* The call did what it says. */
    LANDBRIDGE_OK = 0,

    /* Ranks posted different collectives; the text names the field, the ranks and the values. The same
     * posts would fail again. */
    LANDBRIDGE_RANKS_DISAGREE = 1,
    /* The collective is not defined or not allowed. The same post would fail again. */
    LANDBRIDGE_BAD_REQUEST = 2,
    /* Another rank did not post within the timeout of this one. */
    LANDBRIDGE_RANKS_TIMED_OUT = 3,
    /* A rank that had to post went away. */
    LANDBRIDGE_RANK_LOST = 4,
    /* A region cannot be reached. */
    LANDBRIDGE_REGION_LOST = 5,
    /* The epoch ended before the collective did. Call landbridge_recover, and begin the step again. */
    LANDBRIDGE_EPOCH_ENDED = 6,
    /* All ranks posted, and nothing moved until the deadline. */
    LANDBRIDGE_STALLED = 7,
    /* The gateway is shutting down. */
    LANDBRIDGE_SHUTTING_DOWN = 8,
    /* The connection to the gateway is gone, or the group was closed. landbridge_recover attaches
     * again. */
    LANDBRIDGE_GATEWAY_LOST = 9,

    /* An argument cannot be used; the text names it. Nothing was done. */
    LANDBRIDGE_INVALID_ARGUMENT = 32,
    /* A config or token file cannot be used. */
    LANDBRIDGE_CONFIG = 33,
    /* No gateway answers at the socket. */
    LANDBRIDGE_NO_GATEWAY = 34,
    /* This user may not connect to the socket, or a third user may listen there. No token was sent. */
    LANDBRIDGE_ACCESS_DENIED = 35,
    /* The gateway refused the rank. */
    LANDBRIDGE_REFUSED = 36,
    /* The rank is attached, but the gateways have not met in time. */
    LANDBRIDGE_NO_EPOCH = 37,
    /* The arena has no room. Connect with a larger one, or wait for operations that hold results. */
    LANDBRIDGE_ARENA_FULL = 38,
    /* A limit of the system on memory, descriptors or threads is reached. */
    LANDBRIDGE_LIMIT_REACHED = 39,
    /* A wait ended before its operation, which goes on. */
    LANDBRIDGE_WAIT_TIMEOUT = 40,
    /* The handle belongs to the process that this one was forked from. */
    LANDBRIDGE_FORKED = 41,
    /* A fault of the library, which was caught. The group cannot be used any more: close it. */
    LANDBRIDGE_INTERNAL = 42
} landbridge_status;

/* The type of an element. */
typedef enum landbridge_dtype {
    LANDBRIDGE_F32 = 1,
    LANDBRIDGE_F64 = 2,
    LANDBRIDGE_F16 = 3,
    LANDBRIDGE_BF16 = 4,
    LANDBRIDGE_I32 = 5,
    LANDBRIDGE_I64 = 6,
    /* Also the type for elements of any other type in operations that only move them: as many bytes. */
    LANDBRIDGE_U8 = 7,
    LANDBRIDGE_I8 = 8,
    LANDBRIDGE_I16 = 9,
    LANDBRIDGE_U16 = 10,
    LANDBRIDGE_U32 = 11,
    LANDBRIDGE_U64 = 12,
    /* A truth value in a byte: 0 is false, all else is true, and results are 0 or 1. */
    LANDBRIDGE_BOOL = 13
} landbridge_dtype;

/* The reduction of elements. */
typedef enum landbridge_op {
    /* Integers wrap. Of truth values: whether one of them is true. */
    LANDBRIDGE_SUM = 1,
    /* The mean, weighted by each rank's weight; of floating-point types only. */
    LANDBRIDGE_AVG = 2,
    /* NaN wins, and -0 is less than +0. */
    LANDBRIDGE_MIN = 3,
    /* NaN wins, and +0 is greater than -0. */
    LANDBRIDGE_MAX = 4,
    /* Integers wrap. Of truth values: whether all of them are true. */
    LANDBRIDGE_PROD = 5,
    /* Bitwise and, or, exclusive or: of integers, and logical of truth values. */
    LANDBRIDGE_BAND = 6,
    LANDBRIDGE_BOR = 7,
    LANDBRIDGE_BXOR = 8
} landbridge_op;

/* A failure of one call, written by that call. A call that succeeds writes LANDBRIDGE_OK and an empty
 * text. */
typedef struct landbridge_error {
    /* The status that the call returned. */
    landbridge_status status;
    /* What happened and what to do, in UTF-8, with a 0 at its end. */
    char text[LANDBRIDGE_ERROR_TEXT_BYTES];
} landbridge_error;

/* The ranks of a job, seen from one of them. */
typedef struct landbridge_group landbridge_group;

/* A collective or a commit under way. */
typedef struct landbridge_operation landbridge_operation;

/* What landbridge_connect needs. Either `config` names a region file, or `socket`, `job`, `rank` and a
 * token say what the file would. Texts and token are read during the call only. */
typedef struct landbridge_connect_options {
    /* sizeof(landbridge_connect_options), by the macro. */
    size_t struct_bytes;
    /* Path of the region file, as for `landbridge run`; or NULL. */
    const char *config;
    /* With `config`: name of the gateway, where the file has several and none serves the rank. */
    const char *gateway;
    /* With `config`: name of the rank's region, instead of `rank` and with `local_rank`. */
    const char *region;
    /* Path of the gateway's socket, instead of `config`. */
    const char *socket;
    /* With `socket`: path of the file with the job's token; or NULL. */
    const char *token_file;
    /* With `socket`: the LANDBRIDGE_TOKEN_BYTES bytes of the token; or NULL. */
    const unsigned char *token;
    /* Name of the job; with `config` only where the file has several. */
    const char *job;
    /* Number of the rank in the fabric. */
    uint32_t rank;
    /* With `region`: number of the rank in its region, which stays when another region is added. */
    uint32_t local_rank;
    /* With `socket`: number of the user as whom the gateway runs, where it is neither this user nor
     * root. */
    uint32_t gateway_user;
    /* Bytes of the memory that the gateway shares. It must hold contributions and results that are
     * under way at once, also those in plain memory, and all memory of landbridge_alloc. The call
     * touches every page. */
    uint64_t arena_bytes;
    /* How long to wait for the gateway and the other ranks, in seconds. */
    double timeout_s;
} landbridge_connect_options;

/* Initialises a landbridge_connect_options. */
#define LANDBRIDGE_CONNECT_OPTIONS                                                                      \
    {                                                                                                   \
        sizeof(landbridge_connect_options), NULL, NULL, NULL, NULL, NULL, NULL, NULL,                   \
            LANDBRIDGE_NO_RANK, LANDBRIDGE_NO_RANK, LANDBRIDGE_NO_USER, LANDBRIDGE_DEFAULT_ARENA_BYTES, \
            LANDBRIDGE_DEFAULT_TIMEOUT_S                                                                \
    }

/* What may be said of a collective or a commit. NULL in its place means the defaults of the macro. */
typedef struct landbridge_call_options {
    /* sizeof(landbridge_call_options), by the macro. */
    size_t struct_bytes;
    /* How long to wait for the other ranks to post, in seconds. */
    double timeout_s;
    /* Weight of this rank in an average, such as its number of samples: 0 or more. */
    double weight;
} landbridge_call_options;

/* Initialises a landbridge_call_options. */
#define LANDBRIDGE_CALL_OPTIONS                                             \
    {                                                                       \
        sizeof(landbridge_call_options), LANDBRIDGE_DEFAULT_TIMEOUT_S, 1.0  \
    }

/* What a group knows. */
typedef struct landbridge_info {
    /* sizeof(landbridge_info), by the macro. */
    size_t struct_bytes;
    /* Number of this rank, and how many there are. */
    uint32_t rank;
    uint32_t size;
    /* The epoch that was announced last. */
    uint64_t epoch;
    /* The last step known to be complete in every region, if has_committed_step is not 0. After
     * landbridge_recover it is the step that the gateways agree on. */
    uint64_t committed_step;
    int32_t has_committed_step;
    /* LANDBRIDGE_OK where posts are possible. LANDBRIDGE_GATEWAY_LOST or LANDBRIDGE_EPOCH_ENDED where
     * landbridge_recover must come first. */
    landbridge_status state;
} landbridge_info;

/* Initialises a landbridge_info. */
#define LANDBRIDGE_INFO                                             \
    {                                                               \
        sizeof(landbridge_info), 0, 0, 0, 0, 0, LANDBRIDGE_OK       \
    }

/* Returns the version of the library: major * 10000 + minor * 100 + patch. */
uint32_t landbridge_version(void);

/* Returns words for a status, such as "rank lost (cause: peer)". The cause is the caller, a peer, a link or
 * the gateway. Never NULL; the text is never freed. */
const char *landbridge_status_text(int status);

/*
 * Attaches a rank to its gateway, and waits until all ranks are attached.
 *
 * The call tries until its timeout while the gateway does not run, starts, ends or refuses for a while.
 * An error that lasts, such as a wrong token, ends it at once. *group is NULL after a failure.
 *
 * One process may attach several ranks, of one job or of several: each is a group of its own. Ranks of
 * one job that attach in one process do so at the same time, in threads, since each call waits for all.
 */
landbridge_status landbridge_connect(const landbridge_connect_options *options,
                                     landbridge_group **group, landbridge_error *error);

/* Writes what a group knows into *info, which LANDBRIDGE_INFO has initialised. Never waits. */
landbridge_status landbridge_get_info(const landbridge_group *group, landbridge_info *info,
                                      landbridge_error *error);

/*
 * Detaches a rank, and frees the group and all its memory of landbridge_alloc. NULL does nothing.
 *
 * Operations under way end with LANDBRIDGE_GATEWAY_LOST; on other ranks they go on. Handles of
 * operations stay valid until landbridge_operation_free.
 */
void landbridge_close(landbridge_group *group);

/*
 * Returns memory of the arena in *memory, which collectives use without a copy.
 *
 * A contribution in it is not copied, if it begins at a multiple of LANDBRIDGE_ALIGN_BYTES: leave it
 * unchanged until landbridge_wait_free. A result in it is written by the gateway itself: do not touch
 * it between the post and landbridge_wait. A result over its own contribution costs one copy, and is
 * ready only when the contribution is free. A post whose memory another operation uses waits for it.
 *
 * The memory keeps its content through failures and landbridge_recover. After LANDBRIDGE_GATEWAY_LOST
 * leave it alone until landbridge_recover has returned, since a gateway that still runs may use it.
 */
landbridge_status landbridge_alloc(landbridge_group *group, size_t bytes, void **memory,
                                   landbridge_error *error);

/*
 * Frees memory of landbridge_alloc, by its first byte. NULL does nothing. Operations that use it keep
 * it until they end; the program must not touch it any more.
 */
landbridge_status landbridge_free(landbridge_group *group, void *memory, landbridge_error *error);

/*
 * COLLECTIVES. These rules hold for each of them:
 *
 * Operations on whole buffers: `count` is the number of elements of the contribution, the same on all
 * ranks. Operations on blocks: buffers of several blocks have them one behind the other, in the order
 * of their ranks. `count` is the number of elements of this rank's block, and `counts` has one number
 * for each rank, the same list on all ranks: `counts[rank]` is `count`. `counts` is NULL where all
 * blocks have `count` elements. Blocks may be empty. Lists are read during the call only.
 *
 * Operations that reduce nothing also move elements of any other type: as LANDBRIDGE_U8, with counts in
 * bytes.
 *
 * Without `operation`, that is NULL, the call waits for the result, and until contribution and result
 * may be written again. With it the call returns once the collective is posted, with a handle in
 * *operation. It may wait for others to end before it posts: while 256 are under way, while the arena
 * has no room for copies, and while another uses the same memory of landbridge_alloc. Free each handle
 * by landbridge_operation_free.
 *
 * Contribution and result may be the same. Plain memory of both may overlap in any way.
 *
 * A collective that fails alone, for example with LANDBRIDGE_RANKS_TIMED_OUT, leaves the group usable.
 * After the end of an epoch every post fails with LANDBRIDGE_EPOCH_ENDED until landbridge_recover.
 */

/* Combines the contributions of all ranks, element by element. Every rank gets the result. */
landbridge_status landbridge_all_reduce(const void *contribution, void *result, size_t count,
                                        landbridge_dtype dtype, landbridge_op op,
                                        landbridge_group *group, const landbridge_call_options *options,
                                        landbridge_operation **operation, landbridge_error *error);

/* Combines the contributions of all ranks. Rank `root` gets the result; elsewhere `result` may be NULL
 * and is not written. */
landbridge_status landbridge_reduce(const void *contribution, void *result, size_t count,
                                    landbridge_dtype dtype, landbridge_op op, uint32_t root,
                                    landbridge_group *group, const landbridge_call_options *options,
                                    landbridge_operation **operation, landbridge_error *error);

/* Gives every rank the contribution of rank `root`, bit for bit. Elsewhere `contribution` may be NULL
 * and is not read. */
landbridge_status landbridge_broadcast(const void *contribution, void *result, size_t count,
                                       landbridge_dtype dtype, uint32_t root, landbridge_group *group,
                                       const landbridge_call_options *options,
                                       landbridge_operation **operation, landbridge_error *error);

/* Gives every rank the contributions of all ranks: `result` has the blocks of all. */
landbridge_status landbridge_all_gather(const void *contribution, void *result, size_t count,
                                        const size_t *counts, landbridge_dtype dtype,
                                        landbridge_group *group, const landbridge_call_options *options,
                                        landbridge_operation **operation, landbridge_error *error);

/* Combines the contributions of all ranks, which have a block for each rank. `result` has this rank's
 * block of the reduction. */
landbridge_status landbridge_reduce_scatter(const void *contribution, void *result, size_t count,
                                            const size_t *counts, landbridge_dtype dtype,
                                            landbridge_op op, landbridge_group *group,
                                            const landbridge_call_options *options,
                                            landbridge_operation **operation, landbridge_error *error);

/* Gives rank `root` the contributions of all ranks: its `result` has the blocks of all. Elsewhere
 * `result` may be NULL and is not written. */
landbridge_status landbridge_gather(const void *contribution, void *result, size_t count,
                                    const size_t *counts, landbridge_dtype dtype, uint32_t root,
                                    landbridge_group *group, const landbridge_call_options *options,
                                    landbridge_operation **operation, landbridge_error *error);

/* Gives every rank its own block of the contribution of rank `root`. Elsewhere `contribution` may be
 * NULL and is not read. */
landbridge_status landbridge_scatter(const void *contribution, void *result, size_t count,
                                     const size_t *counts, landbridge_dtype dtype, uint32_t root,
                                     landbridge_group *group, const landbridge_call_options *options,
                                     landbridge_operation **operation, landbridge_error *error);

/* Exchanges blocks of `count` elements between all pairs of ranks: block j of the contribution of rank i
 * becomes block i of the result of rank j. */
landbridge_status landbridge_all_to_all(const void *contribution, void *result, size_t count,
                                        landbridge_dtype dtype, landbridge_group *group,
                                        const landbridge_call_options *options,
                                        landbridge_operation **operation, landbridge_error *error);

/* Exchanges blocks of any lengths between all pairs of ranks. send_counts[j] is the number of elements
 * for rank j, and receive_counts[j] the number from it. Ranks that contradict each other fail with
 * LANDBRIDGE_RANKS_DISAGREE, and the text names both. */
landbridge_status landbridge_all_to_all_v(const void *contribution, const size_t *send_counts,
                                          void *result, const size_t *receive_counts,
                                          landbridge_dtype dtype, landbridge_group *group,
                                          const landbridge_call_options *options,
                                          landbridge_operation **operation, landbridge_error *error);

/* Waits until every rank has reached its own barrier. It takes no memory of the arena. */
landbridge_status landbridge_barrier(landbridge_group *group, const landbridge_call_options *options,
                                     landbridge_operation **operation, landbridge_error *error);

/*
 * Waits until every region has the results of all collectives that this rank posted since its last
 * commit. Call it before an optimizer steps.
 *
 * `step` is the program's number for these collectives. It has to be the same on all ranks, which
 * nobody compares; of two, the next epoch names the higher. After a failure this
 * rank does not know whether every region has the results: landbridge_get_info says it after
 * landbridge_recover. Options have the timeout; the weight is not used.
 */
landbridge_status landbridge_commit(landbridge_group *group, uint64_t step,
                                    const landbridge_call_options *options,
                                    landbridge_operation **operation, landbridge_error *error);

/*
 * Waits for the result of an operation, for at most timeout_s seconds; INFINITY for as long as it
 * takes. LANDBRIDGE_WAIT_TIMEOUT says that it goes on. Any other failure is that of the collective. A
 * call after the first returns the same at once.
 */
landbridge_status landbridge_wait(landbridge_operation *operation, double timeout_s,
                                  landbridge_error *error);

/*
 * Waits until the operation uses no memory of landbridge_alloc any more, after success or failure, for
 * at most timeout_s seconds. It says nothing of the result. Operations in plain memory need no such
 * wait.
 */
landbridge_status landbridge_wait_free(landbridge_operation *operation, double timeout_s,
                                       landbridge_error *error);

/* Sets *is_done to 1 where landbridge_wait would return at once, and to 0 otherwise. Never waits. A
 * result that is ready is in place then. Returns LANDBRIDGE_OK also where the operation failed. */
landbridge_status landbridge_test(landbridge_operation *operation, int *is_done,
                                  landbridge_error *error);

/* Frees the handle of an operation, which goes on if it has not ended. A result that was not waited for
 * is never written to plain memory. NULL does nothing. */
void landbridge_operation_free(landbridge_operation *operation);

/*
 * Returns when every rank is ready to begin a step again, after a failed one.
 *
 * All ranks call it, since all of them see a failure; a rank that was started again calls
 * landbridge_connect instead. The call attaches again if the connection is gone, and ends the epoch if
 * it has not ended. It tries until its timeout whatever gateways do meanwhile, as landbridge_connect.
 * Operations that are under way end with LANDBRIDGE_GATEWAY_LOST. Posts of other threads wait.
 *
 * Do not call it after LANDBRIDGE_RANKS_DISAGREE or LANDBRIDGE_BAD_REQUEST: the same posts would fail
 * again. Compare steps among the ranks afterwards: a failure may reach one rank before the end of a
 * step and another one after it.
 */
landbridge_status landbridge_recover(landbridge_group *group, double timeout_s,
                                     landbridge_error *error);

#ifdef __cplusplus
}
#endif

#endif
