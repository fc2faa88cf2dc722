/* A clock that can be stepped: gettimeofday() of the process that this library is loaded into is off by as many
   microseconds as the first eight bytes of the file SKEW_FILE say at that moment. Redis reads its time nowhere else. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *mapped;

static long long offset(void) {
    if (!mapped) {
        const char *path = getenv("SKEW_FILE");
        int file = path ? open(path, O_RDONLY) : -1;
        if (file < 0) return 0;
        void *memory = mmap(0, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (memory == MAP_FAILED) return 0;
        mapped = memory;
    }
    return *mapped;
}

int gettimeofday(struct timeval *restrict value, void *restrict zone) {
    struct timespec now;
    (void)zone;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    long long us = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000 + offset();
    value->tv_sec = us / 1000000;
    value->tv_usec = us % 1000000;
    return 0;
}
