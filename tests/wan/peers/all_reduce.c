/* All-reduces with MPI: bytes, iterations. Rank 0 prints a line of JSON when it begins, and one
   with the slowest rank's seconds of each and the processor time of all ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 64;
    size_t elements = strtoull(argv[1], NULL, 10) / sizeof(float);
    int iterations = atoi(argv[2]), rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    float *give = malloc(elements * sizeof *give), *get = malloc(elements * sizeof *get);
    if (!give || !get)
        return 1;
    for (size_t i = 0; i < elements; i++)
        give[i] = rank + 1;
    MPI_Allreduce(give, get, 1 << 18, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"seconds\": []}\n");
    fflush(stdout);
    for (int i = 0; i < iterations; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime(), cpu_begin = cpu_seconds();
        MPI_Allreduce(give, get, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double mine = MPI_Wtime() - begin, slowest;
        double my_cpu = cpu_seconds() - cpu_begin, cpu;
        MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        MPI_Reduce(&my_cpu, &cpu, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        for (size_t k = 0; k < elements; k++)
            if (get[k] != ranks * (ranks + 1) / 2)
                MPI_Abort(MPI_COMM_WORLD, 1);
        if (rank == 0)
            printf("{\"seconds\": [%.6f], \"cpu_seconds\": %.6f}\n", slowest, cpu);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
