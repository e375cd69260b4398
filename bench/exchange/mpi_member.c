// Open MPI in bench/exchange.py: adds vectors with MPI_Allreduce and tells how long it took. Idle ranks block on the driver's socket.
// mpi_member NAME SOCKET
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static long now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

int main(int count, char **arguments) {
  MPI_Init(&count, &arguments);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int s = socket(AF_UNIX, SOCK_STREAM, 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strncpy(address.sun_path, arguments[2], sizeof address.sun_path - 1);
  if (connect(s, (void *)&address, sizeof address)) return 1;
  FILE *in = fdopen(dup(s), "r"), *out = fdopen(s, "w");
  fprintf(out, "%s %d\n", arguments[1], rank);
  fflush(out);
  size_t bytes, times;
  while (fscanf(in, "%zu %zu", &bytes, &times) == 2) {
    size_t length = bytes / 4;
    float *x = malloc(bytes + 64), *y = malloc(bytes + 64);
    for (size_t i = 0; i < length; i++) x[i] = i % 97 * 0.1f + rank, y[i] = 0;
    MPI_Allreduce(x, y, length, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    long before = now(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t k = 0; k < times; k++) {
      long start = now(CLOCK_MONOTONIC);
      MPI_Allreduce(x, y, length, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      fprintf(out, "%s%ld", k ? "," : "", now(CLOCK_MONOTONIC) - start);
    }
    fprintf(out, "|%ld\n", now(CLOCK_PROCESS_CPUTIME_ID) - before);
    fflush(out);
    free(x), free(y);
  }
  MPI_Finalize();
  return 0;
}
