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
 * operation. But landbridge_close, landbridge_operation_free and landbridge_store_values_free end
 * their handle, and no other call with that handle may be running or follow. All ranks post in the
 * same order; where several threads post to one group, the program keeps their order. Groups know
 * nothing of each other: a thread that waits for one delays no other. Groups of one rank share only
 * its arena and its 256 operations under way. No function may be called in a signal handler. The
 * library has one thread for each connected rank, and for a minute another one after a failure that is
 * dumped. They take no signals of the program.
 *
 * MEMORY. Buffers may lie anywhere. The contribution is read before a posting function returns. The
 * result is written only inside landbridge_wait, landbridge_test, or a call that waits itself. So an
 * operation that is freed early never writes to memory that is gone. Memory of landbridge_alloc is used
 * in place instead, without a copy; see there.
 *
 * FORK. A child of fork cannot use handles of its parent: calls return LANDBRIDGE_FORKED, and
 * landbridge_close and landbridge_operation_free do nothing. Values of the store stay readable. The
 * child may connect itself. A child that lives on without exec keeps its parent's connections open,
 * so that gateways hear of the parent's end only with that of the child.
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

/* 1,280 bytes: the room for the text of an error, with the 0 at its end. A longer text is cut there. */
#define LANDBRIDGE_ERROR_TEXT_BYTES 1280
/* 32 bytes: the length of a job's token. */
#define LANDBRIDGE_TOKEN_BYTES 32
/* 64 bytes: memory of landbridge_alloc begins at a multiple of this number. A contribution or result in
 * it is used in place if it begins at a multiple as well, else it is copied. */
#define LANDBRIDGE_ALIGN_BYTES 64
/* 30 minutes in seconds: how long calls by default wait for other ranks, which may be writing a
 * checkpoint or restarting. After that time the call fails. */
#define LANDBRIDGE_DEFAULT_TIMEOUT_S 1800.0
/* 256 MiB: the default size of a rank's arena, which all groups of the rank share. */
#define LANDBRIDGE_DEFAULT_ARENA_BYTES 268435456
/* 2^32 - 1: no rank, where options ask for the number of a rank. */
#define LANDBRIDGE_NO_RANK UINT32_MAX
/* 2^32 - 1: no user, where options ask for the number of a user. */
#define LANDBRIDGE_NO_USER UINT32_MAX
/* 2^32 - 1: no color. A rank that gives it to landbridge_split joins no group. */
#define LANDBRIDGE_NO_COLOR UINT32_MAX
/* 65,535: the highest tag of landbridge_send and landbridge_receive; a higher one is refused. */
#define LANDBRIDGE_TAG_MAX 65535
/* 5 minutes in seconds: a timeout for requests to the store, as the stores of PyTorch have it. After
 * that time a request fails. */
#define LANDBRIDGE_STORE_TIMEOUT_S 300.0
/* 1,024 bytes: the longest key of the store, without the 0 at its end. A longer one is refused. */
#define LANDBRIDGE_STORE_KEY_BYTES_MAX 1024
/* 48 KiB: the longest value of the store, and the longest item of a queue. A longer one is refused. */
#define LANDBRIDGE_STORE_VALUE_BYTES_MAX 49152

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
    /* Regions were lost or are back, and the others go on. Call landbridge_recover, which gives rank and
     * size among those that go on, and begin the step again. */
    LANDBRIDGE_MEMBERSHIP_CHANGED = 10,

    /* An argument cannot be used; the text names it. Nothing was done. */
    LANDBRIDGE_INVALID_ARGUMENT = 32,
    /* A config, token or dump file cannot be used. */
    LANDBRIDGE_CONFIG = 33,
    /* No gateway answers at the socket or address. */
    LANDBRIDGE_NO_GATEWAY = 34,
    /* This user may not connect to the socket, a third user may listen there, or the gateway at the
     * address does not prove its name. No token was sent. */
    LANDBRIDGE_ACCESS_DENIED = 35,
    /* The gateway refused the rank. */
    LANDBRIDGE_REFUSED = 36,
    /* The rank is attached, but the gateways of the job or group have not met in time. */
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
    LANDBRIDGE_INTERNAL = 42,

    /* The time of a request to the store was over: a key was not there, or gateways cannot be reached.
     * Nothing was changed, and nothing will be. */
    LANDBRIDGE_STORE_TIMED_OUT = 43,
    /* The time was over before the outcome of a change was known: made, not made, or made later. */
    LANDBRIDGE_STORE_UNCONFIRMED = 44,
    /* Too many requests to the store wait at this gateway. Nothing was changed. */
    LANDBRIDGE_STORE_BUSY = 45,
    /* The store refused a change: it is full, a value is no number, or an answer would be too long.
     * Nothing was changed. */
    LANDBRIDGE_STORE_REFUSED = 46,

    /* There was no room to post within the timeout: earlier operations of this rank or its threads were in
     * the way. Nothing was posted, the contribution is intact, and no other rank knows of the call. Wait for
     * operations that are under way, and call again. */
    LANDBRIDGE_POST_TIMED_OUT = 47
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

/* Ranks that exchange among themselves, seen from one of them: all ranks of a job, by landbridge_connect,
 * or some of them, by landbridge_new_group, landbridge_new_group_with_tag or landbridge_split. */
typedef struct landbridge_group landbridge_group;

/* A collective, a send, a receive or a commit under way. */
typedef struct landbridge_operation landbridge_operation;

/* Values or keys that the store returned. */
typedef struct landbridge_store_values landbridge_store_values;

/* What landbridge_connect needs. `config` names a region file; or `socket`, `job`, `rank` and a token say
 * what the file would; or `address`, `ca`, `job`, `rank` and a token lead to a gateway on another host.
 * Texts and token are read during the call only. */
typedef struct landbridge_connect_options {
    /* sizeof(landbridge_connect_options), by the macro. */
    size_t struct_bytes;
    /* Path of the region file, as for `landbridge run`; or NULL. */
    const char *config;
    /* With `config`: name of the gateway, where the file has several and none serves the rank. With
     * `address`: name of the one gateway that is accepted; by default any of the deployment. */
    const char *gateway;
    /* With `config`: name of the rank's region, instead of `rank` and with `local_rank`. */
    const char *region;
    /* Path of the gateway's socket, instead of `config`. */
    const char *socket;
    /* With `socket` or `address`: path of the file with the job's token; or NULL. */
    const char *token_file;
    /* With `socket` or `address`: the LANDBRIDGE_TOKEN_BYTES bytes of the token; or NULL. */
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
     * under way at the same time, also those in plain memory, and all memory of landbridge_alloc. The
     * call touches every page. */
    uint64_t arena_bytes;
    /* How long to wait for the gateway and the other ranks, in seconds: 0 to 1e9. */
    double timeout_s;
    /* The `attach` address of a gateway on another host of the site, as "tls://HOST:PORT", instead of
     * `config` and `socket`. Contributions and results then cross the network between the two hosts. */
    const char *address;
    /* With `address`: path of the certificate of the deployment's CA, by which the gateway proves its name. No
     * token goes to a gateway that does not. */
    const char *ca;
    /* With `address`: paths of this trainer's certificate and its key, for a gateway with `trainers_ca`; or
     * both NULL. */
    const char *certificate;
    const char *key;
    /* Path of a folder into which the rank is dumped when a collective fails; see landbridge_dump. NULL stands
     * for the folder in the environment variable LANDBRIDGE_DUMPS, if it is set. */
    const char *dumps;
} landbridge_connect_options;

/* Initialises a landbridge_connect_options. */
#define LANDBRIDGE_CONNECT_OPTIONS                                                                      \
    {                                                                                                   \
        sizeof(landbridge_connect_options), NULL, NULL, NULL, NULL, NULL, NULL, NULL,                   \
            LANDBRIDGE_NO_RANK, LANDBRIDGE_NO_RANK, LANDBRIDGE_NO_USER, LANDBRIDGE_DEFAULT_ARENA_BYTES, \
            LANDBRIDGE_DEFAULT_TIMEOUT_S, NULL, NULL, NULL, NULL, NULL                                  \
    }

/* What may be said of a collective, send, receive or commit. NULL in its place means the defaults of the
 * macro. */
typedef struct landbridge_call_options {
    /* sizeof(landbridge_call_options), by the macro. */
    size_t struct_bytes;
    /* How long to wait for room and then for the other ranks to post, together, in seconds: 0 to 1e9.
     * INFINITY is refused here. */
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
    /* Number of this rank in the group, and how many there are. */
    uint32_t rank;
    uint32_t size;
    /* The epoch that was announced last. */
    uint64_t epoch;
    /* The last step known to be complete in every region, if has_committed_step is not 0. After
     * landbridge_recover it is the step that the gateways agree on. */
    uint64_t committed_step;
    int32_t has_committed_step;
    /* LANDBRIDGE_OK where posts are possible. LANDBRIDGE_GATEWAY_LOST or LANDBRIDGE_EPOCH_ENDED where
     * landbridge_recover must come first, and a group that ranks made must be made again. */
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
 * An error that lasts, such as a wrong token, ends it immediately. *group is NULL after a failure.
 *
 * One process may attach several ranks, of one job or of several: each is a group of its own. Ranks of
 * one job that attach in one process do so at the same time, in threads, since each call waits for all.
 *
 * The ranks wait for each other at a barrier of the job, as those in Python do. A rank in Rust attaches
 * without it: beside ranks in C it calls Client::barrier before any other collective. Else this call waits
 * for its whole timeout, and returns LANDBRIDGE_RANKS_TIMED_OUT with the number of that rank.
 */
landbridge_status landbridge_connect(const landbridge_connect_options *options,
                                     landbridge_group **group, landbridge_error *error);

/* Writes what a group knows into *info, which LANDBRIDGE_INFO has initialised. Never waits. */
landbridge_status landbridge_get_info(const landbridge_group *group, landbridge_info *info,
                                      landbridge_error *error);

/*
 * Writes the flight recorder of the rank of a group into the file `path`, as JSON: the last 512 collectives
 * of all its groups, when each was posted and ended, and the error. `landbridge explain` reads such files,
 * and docs/schemas/client/dump.json describes them. A file that is there is replaced. Only the user of this
 * process can read the new one. It holds no token, no key and no element of a buffer.
 *
 * The call asks nobody and waits for the disk alone, so that it also works while a collective hangs, in
 * another thread. LANDBRIDGE_CONFIG says that the file cannot be written.
 *
 * Where landbridge_connect_options or LANDBRIDGE_DUMPS name a folder, the rank also writes such a file there
 * by itself, JOB-rank-NUMBER-SECONDS.json, when a collective fails with status 1, 3, 4, 5, 7 or 9. Dumps are
 * at least a minute apart, and of a rank there are at most 32, of which the oldest go first. A thread writes
 * them: no call waits for it but landbridge_close, for a second at most, so close the group before a
 * program ends after a failure. A folder that takes no file harms nothing.
 */
landbridge_status landbridge_dump(const landbridge_group *group, const char *path, landbridge_error *error);

/*
 * Frees a group. NULL does nothing.
 *
 * Groups of one rank may be closed in any order. While another one is open, operations under way go on;
 * a group that ranks made is left once nothing of it is under way. With the last group the rank is
 * detached, and all its memory of landbridge_alloc is freed: operations under way end with
 * LANDBRIDGE_GATEWAY_LOST; on other ranks they go on. Handles of operations stay valid until
 * landbridge_operation_free.
 */
void landbridge_close(landbridge_group *group);

/*
 * GROUPS of some ranks of another group, their parent. They need no configuration, and have all
 * operations of a job but landbridge_recover. In the new group ranks are numbered from 0 on, in the
 * order of their numbers in the parent. A rank may be in many groups at the same time, and a job has at
 * most 4,096. Each group that is open lengthens the time after which a collective that does not move
 * fails with LANDBRIDGE_STALLED: close those that are not used. An idle group takes no bandwidth.
 *
 * These calls wait for the gateways of the new group, at most timeout_s seconds (0 to 1e9), which takes
 * a round trip between them; for its ranks only the first collective waits. After a failure *made is
 * NULL, and LANDBRIDGE_NO_EPOCH says that the gateways did not meet. *made is NULL also on a rank that
 * is not in the new group, where the call returns LANDBRIDGE_OK.
 *
 * A group lasts for one epoch of its own. Other groups notice a failure only if they contain the failed
 * rank. After the end of that epoch, and after landbridge_recover, posts fail with
 * LANDBRIDGE_EPOCH_ENDED or LANDBRIDGE_GATEWAY_LOST: close the group, and make it again. A rank that ends
 * before its first post in a group is waited for like a late one, for the timeout of each post.
 */

/* Makes a group of `count` ranks, given by their numbers in `group`, in any order. All ranks of `group`
 * call it, in one epoch, and make their groups in one order. Ranks that name different ranks at one
 * call get LANDBRIDGE_RANKS_DISAGREE, there or at their next post in the new group. The list is read
 * during the call only. */
landbridge_status landbridge_new_group(landbridge_group *group, const uint32_t *ranks, size_t count,
                                       double timeout_s, landbridge_group **made,
                                       landbridge_error *error);

/* Makes a group as landbridge_new_group does, but only its own ranks call it, in any order and any epoch.
 * They give it one tag, which none of them uses for another group of `group` until all of them have
 * closed this one. */
landbridge_status landbridge_new_group_with_tag(landbridge_group *group, const uint32_t *ranks,
                                                size_t count, uint32_t tag, double timeout_s,
                                                landbridge_group **made, landbridge_error *error);

/* Makes a group of all ranks that give the same color. All ranks of `group` call it, and wait for each
 * other, at most timeout_s seconds as well: then LANDBRIDGE_RANKS_TIMED_OUT leaves `group` usable. One
 * with LANDBRIDGE_NO_COLOR joins no group. Keys may not reorder the ranks of a color: that is a
 * LANDBRIDGE_INVALID_ARGUMENT. The call takes 16 bytes of the arena, and 16 for
 * each rank. */
landbridge_status landbridge_split(landbridge_group *group, uint32_t color, int32_t key,
                                   double timeout_s, landbridge_group **made, landbridge_error *error);

/* Writes the number in the job of a rank of a group into *rank_in_job. Never waits. */
landbridge_status landbridge_rank_in_job(const landbridge_group *group, uint32_t rank,
                                         uint32_t *rank_in_job, landbridge_error *error);

/*
 * Returns memory of the arena in *memory, which collectives of all groups of the rank use without a copy.
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
 * Frees memory of landbridge_alloc, by its first byte and any group of the rank. NULL does nothing.
 * Operations that use it keep it until they end; the program must not touch it any more.
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
 * *operation. It may wait for others to end before it posts: while 256 of the rank are under way, while
 * the arena has no room for copies, while another uses the same memory of landbridge_alloc, and while
 * another thread posts in the job. That wait is part of the timeout; at its end the call returns
 * LANDBRIDGE_POST_TIMED_OUT, and nothing was posted. Free each handle by landbridge_operation_free.
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
 * SENDS from one rank of a group to another one, matched by a tag. Only these two take part, and no
 * other hears of their failures. What is said of memory, counts and `operation` of collectives holds.
 *
 * `peer` is the other rank's number in the group, and `tag` is at most LANDBRIDGE_TAG_MAX. Both give the
 * same `count` and `dtype`, or both fail with LANDBRIDGE_RANKS_DISAGREE. Of a tag the first send meets the
 * first receive, the second the second, and so on, also where one of them fails: so keep the order of
 * threads that use one tag. Sends with different tags wait for nothing of each other. A rank may use at
 * most 1,024 tags to another one, and as many from it; with one more, all that the two have under way
 * fails.
 *
 * Before the first send or receive of two ranks is posted, their gateways meet, which takes a round trip.
 * Pairs of ranks do not count among the 4,096 groups of a job; it has at most 32,768. After a failure call
 * again: no landbridge_recover is needed once both are attached, and the call waits for their next epoch.
 *
 * To look for a message from time to time, post one receive with `operation`, and call landbridge_wait with
 * a short timeout again and again. A receive that fails by its own timeout, or whose handle is freed,
 * still has its place: it uses up one send. Without
 * `operation` two ranks that both send first wait for each other in vain: give it, or let one receive
 * first. Options have the timeout, for room, the meeting of the gateways and the other rank together; the
 * weight is not used. No commit covers sends.
 */

/* Sends the contribution to rank `peer`, and is done once that rank has it. */
landbridge_status landbridge_send(const void *contribution, size_t count, landbridge_dtype dtype,
                                  uint32_t peer, uint32_t tag, landbridge_group *group,
                                  const landbridge_call_options *options,
                                  landbridge_operation **operation, landbridge_error *error);

/* Receives what rank `peer` sends with the same tag. */
landbridge_status landbridge_receive(void *result, size_t count, landbridge_dtype dtype, uint32_t peer,
                                     uint32_t tag, landbridge_group *group,
                                     const landbridge_call_options *options,
                                     landbridge_operation **operation, landbridge_error *error);

/*
 * Waits until every region has the results of all collectives that this rank posted in the group since
 * its last commit there. Call it before an optimizer steps.
 *
 * `step` is the program's number for these collectives. Ranks that commit after the same collective must
 * name the same one: else the epoch ends, and ranks hear code 1 with both steps. A commit without
 * collectives of its own is not compared; of two, the next epoch names the higher. After a failure this
 * rank does not know whether every region has the results: landbridge_get_info says it after
 * landbridge_recover. Options have the timeout; the weight is not used.
 */
landbridge_status landbridge_commit(landbridge_group *group, uint64_t step,
                                    const landbridge_call_options *options,
                                    landbridge_operation **operation, landbridge_error *error);

/*
 * Waits for the result of an operation, for at most timeout_s seconds; INFINITY for as long as it
 * takes. LANDBRIDGE_WAIT_TIMEOUT says that it goes on. Any other failure is that of the collective. A
 * call after the first returns the same without waiting.
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

/* Sets *is_done to 1 where landbridge_wait would return without waiting, and to 0 otherwise. Never
 * waits. A result that is ready is in place then. Returns LANDBRIDGE_OK also where the operation
 * failed. */
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
 * Operations that are under way end with LANDBRIDGE_GATEWAY_LOST. Collectives that other threads post
 * wait; the call waits for those that post already, and returns LANDBRIDGE_POST_TIMED_OUT where they are
 * not through in time. `group` is one of landbridge_connect; groups that ranks made of it must be made again.
 *
 * Do not call it after LANDBRIDGE_RANKS_DISAGREE or LANDBRIDGE_BAD_REQUEST: the same posts would fail
 * again. Compare steps among the ranks afterwards: a failure may reach one rank before the end of a
 * step and another one after it.
 */
landbridge_status landbridge_recover(landbridge_group *group, double timeout_s,
                                     landbridge_error *error);

/*
 * THE STORE of a job: keys with values, counters and queues that all its ranks share, whichever their
 * group and language. Every gateway of the job holds all of it. A change is made once all of them have
 * it; reads are answered by the gateway of this rank. All ranks see the changes in one order.
 *
 * `group` is any group of the rank. `timeout_s` is how long to wait, in seconds (0 to 1e9), such as
 * LANDBRIDGE_STORE_TIMEOUT_S. A call waits for its answer; other threads, groups and requests go on.
 * At most 128 requests of a rank are under way, and at most 112 that wait for a key or an item; further
 * ones wait for room first, at most for their timeout.
 *
 * A key is a text in UTF-8 of 1 to LANDBRIDGE_STORE_KEY_BYTES_MAX bytes. A value is any bytes, at most
 * LANDBRIDGE_STORE_VALUE_BYTES_MAX, and may be NULL where it has none. A list has 1 to 1,024 keys, each
 * once. The keys and values of one request, and those of its answer, have at most 57,344 bytes
 * together. A store has at most 65,536 keys and 16 MiB. Arguments are read during the call only.
 *
 * Values come in memory of the library, so no buffer of the caller can be too small: *values is a handle
 * that the caller frees by landbridge_store_values_free, and NULL after a failure. It may outlive the
 * group. Outputs of which it is said may be NULL.
 *
 * LANDBRIDGE_GATEWAY_LOST says that the connection ended, and that a change may have been made. Requests
 * are possible again after landbridge_recover; they survive the end of an epoch.
 */

/* Gives a key a value. */
landbridge_status landbridge_store_set(landbridge_group *group, const char *key, const void *value,
                                       size_t bytes, double timeout_s, landbridge_error *error);

/* Gives `count` keys their values, all in one change: values[i] has bytes[i] bytes. */
landbridge_status landbridge_store_multi_set(landbridge_group *group, const char *const *keys,
                                             const void *const *values, const size_t *bytes,
                                             size_t count, double timeout_s, landbridge_error *error);

/* Returns the value of a key, once it has one. */
landbridge_status landbridge_store_get(landbridge_group *group, const char *key, double timeout_s,
                                       landbridge_store_values **values, landbridge_error *error);

/* Returns the values of `count` keys at one moment, once all of them have one. */
landbridge_status landbridge_store_multi_get(landbridge_group *group, const char *const *keys,
                                             size_t count, double timeout_s,
                                             landbridge_store_values **values, landbridge_error *error);

/* Adds to the number that is the value of a key, as a decimal text; 0 at first. *sum is the sum; `sum` may
 * be NULL. */
landbridge_status landbridge_store_add(landbridge_group *group, const char *key, int64_t amount,
                                       double timeout_s, int64_t *sum, landbridge_error *error);

/* Gives a key the value `desired` if its value is `expected`; an empty `expected` also stands for a key
 * without a value. Returns the value that the key has then, or `expected` if it has none. */
landbridge_status landbridge_store_compare_set(landbridge_group *group, const char *key,
                                               const void *expected, size_t expected_bytes,
                                               const void *desired, size_t desired_bytes,
                                               double timeout_s, landbridge_store_values **values,
                                               landbridge_error *error);

/* Appends bytes to the value of a key, which is empty at first. */
landbridge_status landbridge_store_append(landbridge_group *group, const char *key, const void *value,
                                          size_t bytes, double timeout_s, landbridge_error *error);

/* Waits until all of `count` keys exist, with a value or a queue. */
landbridge_status landbridge_store_wait(landbridge_group *group, const char *const *keys, size_t count,
                                        double timeout_s, landbridge_error *error);

/* Sets *all_exist to 1 where all of `count` keys exist now, with a value or a queue, and to 0 otherwise. */
landbridge_status landbridge_store_check(landbridge_group *group, const char *const *keys, size_t count,
                                         double timeout_s, int *all_exist, landbridge_error *error);

/* Removes a key with its value and its queue. Sets *existed to 1 where there was one, and to 0 otherwise;
 * `existed` may be NULL. */
landbridge_status landbridge_store_delete_key(landbridge_group *group, const char *key, double timeout_s,
                                              int *existed, landbridge_error *error);

/* Writes the number of keys into *keys. */
landbridge_status landbridge_store_num_keys(landbridge_group *group, double timeout_s, int64_t *keys,
                                            landbridge_error *error);

/* Returns the keys that begin with `prefix`, in the order of their bytes; "" stands for all. Keys that
 * come or go meanwhile may be missing. Ranks in other languages may make keys with a 0 inside; the
 * length counts it. */
landbridge_status landbridge_store_list_keys(landbridge_group *group, const char *prefix,
                                             double timeout_s, landbridge_store_values **values,
                                             landbridge_error *error);

/* Adds an item at the end of the queue of a key. *length is the length of the queue then; `length` may be
 * NULL. A key may have a value and a queue. */
landbridge_status landbridge_store_queue_push(landbridge_group *group, const char *key, const void *item,
                                              size_t bytes, double timeout_s, int64_t *length,
                                              landbridge_error *error);

/* Takes the first item of the queue of a key, once there is one. Each item goes to one rank. After
 * LANDBRIDGE_STORE_UNCONFIRMED or LANDBRIDGE_GATEWAY_LOST an item may have been taken. */
landbridge_status landbridge_store_queue_pop(landbridge_group *group, const char *key, double timeout_s,
                                             landbridge_store_values **values, landbridge_error *error);

/* Takes the first item of the queue of a key, if there is one now. Otherwise *values has no value. */
landbridge_status landbridge_store_queue_try_pop(landbridge_group *group, const char *key,
                                                 double timeout_s, landbridge_store_values **values,
                                                 landbridge_error *error);

/* Writes the number of items in the queue of a key into *length. */
landbridge_status landbridge_store_queue_len(landbridge_group *group, const char *key, double timeout_s,
                                             int64_t *length, landbridge_error *error);

/* Returns the number of values; 0 for NULL. */
size_t landbridge_store_values_count(const landbridge_store_values *values);

/* Returns the first byte of value number `at`, and writes its length into *bytes, unless that is NULL.
 * Behind the value lies a 0, which is not counted, so that a text can be used as it is. The memory stays
 * until landbridge_store_values_free. Returns NULL, with 0 bytes, where there is no such value. */
const void *landbridge_store_value(const landbridge_store_values *values, size_t at, size_t *bytes);

/* Frees values. NULL does nothing. */
void landbridge_store_values_free(landbridge_store_values *values);

#ifdef __cplusplus
}
#endif

#endif
