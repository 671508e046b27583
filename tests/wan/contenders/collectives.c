/* Collectives with MPI: operation, bytes, iterations. Rank 0 prints a line of JSON when it begins, and
   one for each with the last post, the last result and the processor time of all ranks. */
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* All ranks are on one machine and read one clock. */
static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

enum operation { ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, UNKNOWN };

static const char *const NAMES[] = {"all-reduce", "all-gather", "all-to-all"};

static enum operation operation_of(const char *name) {
    int operation = ALL_REDUCE;
    while (operation != UNKNOWN && strcmp(name, NAMES[operation]))
        operation++;
    return operation;
}

static void run(enum operation operation, const float *give, float *get, int elements, int block) {
    if (operation == ALL_REDUCE)
        MPI_Allreduce(give, get, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (operation == ALL_GATHER)
        MPI_Allgather(give, block, MPI_FLOAT, get, block, MPI_FLOAT, MPI_COMM_WORLD);
    else
        MPI_Alltoall(give, block, MPI_FLOAT, get, block, MPI_FLOAT, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    if (argc != 4 || operation_of(argv[1]) == UNKNOWN)
        return 64;
    enum operation operation = operation_of(argv[1]);
    size_t elements = strtoull(argv[2], NULL, 10) / sizeof(float);
    int iterations = atoi(argv[3]), rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t block = elements / ranks;
    float *give = malloc(elements * sizeof *give), *get = malloc(elements * sizeof *get);
    if (!give || !get)
        return 1;
    for (size_t i = 0; i < elements; i++)
        give[i] = rank + 1;
    MPI_Allreduce(give, get, 1 << 18, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"posted_ns\": [], \"ready_ns\": []}\n");
    fflush(stdout);
    for (int i = 0; i < iterations; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double cpu_begin = cpu_seconds();
        uint64_t mine[2] = {now_ns()}, last[2];
        run(operation, give, get, (int)elements, (int)block);
        mine[1] = now_ns();
        double my_cpu = cpu_seconds() - cpu_begin, cpu;
        MPI_Reduce(mine, last, 2, MPI_UINT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
        MPI_Reduce(&my_cpu, &cpu, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        for (size_t k = 0; k < elements; k++) {
            size_t expected = operation == ALL_REDUCE ? (size_t)(ranks * (ranks + 1) / 2) : k / block + 1;
            if (get[k] != expected)
                MPI_Abort(MPI_COMM_WORLD, 1);
        }
        if (rank == 0)
            printf("{\"posted_ns\": [%" PRIu64 "], \"ready_ns\": [%" PRIu64 "], \"cpu_seconds\": %.6f}\n",
                   last[0], last[1], cpu);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
