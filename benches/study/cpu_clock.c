/* Makes `trainer codec bench` measure the time of the processor, which others that share the machine do not change.
 * methods_bench.py compiles it, and loads it into the bench, which has one thread. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
  return (int)syscall(SYS_clock_gettime, clock == CLOCK_MONOTONIC ? CLOCK_THREAD_CPUTIME_ID : clock, time);
}
