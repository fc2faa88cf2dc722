/* Preloaded into Leasehold, this stands for a disk that loses power or fails, for the files whose names contain
 * DISK_FILES.
 *
 * Each write is noted in the file DISK_UNDO, with what was there before, until the file is synchronized: a test that kills
 * the process can then take back whatever a loss of power may take back. A note is a header of numbers and the former
 * content; a disk writes whole sectors, so notes are about whole sectors, too.
 *
 * While the file DISK_FAILS exists, synchronizing fails with EIO. As on Linux, the next call succeeds, although what the
 * failed one was to write may be lost: its notes go to the file DISK_LOST, and stay there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECTOR = 512 };

struct note {
    uint64_t inode, offset, length, size_before;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is_ours(int file) {
    char link[64], path[4096];
    const char *names = getenv("DISK_FILES");
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!names || length < 0) return 0;
    path[length] = 0;
    return strstr(path, names) != 0;
}

static ssize_t real_pwrite(int file, const void *bytes, size_t length, off_t offset) {
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "pwrite64");
    return next(file, bytes, length, offset);
}

static void append(const char *path, const void *bytes, size_t length) {
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file < 0 || write(file, bytes, length) != (ssize_t)length) abort();
    close(file);
}

/* Notes what a write, or a change of the size, is about to replace. */
static void note(int file, off_t offset, size_t length) {
    struct stat status;
    if (fstat(file, &status)) abort();
    uint64_t begin = offset / SECTOR * SECTOR;
    uint64_t end = (offset + length + SECTOR - 1) / SECTOR * SECTOR;
    struct note header = {status.st_ino, begin, end - begin, status.st_size};
    char *record = calloc(1, sizeof header + header.length);
    memcpy(record, &header, sizeof header);
    if (pread(file, record + sizeof header, header.length, begin) < 0) abort();
    append(getenv("DISK_UNDO"), record, sizeof header + header.length);
    free(record);
    if (!status.st_size) {
        /* A new file, perhaps with the number of one that is gone: what was lost of that one is of no importance. */
        header.length = 0;
        append(getenv("DISK_LOST"), &header, sizeof header);
    }
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off_t offset) {
    if (!is_ours(file)) return real_pwrite(file, bytes, length, offset);
    pthread_mutex_lock(&lock);
    note(file, offset, length);
    ssize_t written = real_pwrite(file, bytes, length, offset);
    pthread_mutex_unlock(&lock);
    return written;
}

int ftruncate64(int file, off_t size) {
    static int (*next)(int, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "ftruncate64");
    if (!is_ours(file)) return next(file, size);
    struct stat status;
    pthread_mutex_lock(&lock);
    if (fstat(file, &status)) abort();
    note(file, size, status.st_size > size ? status.st_size - size : 0);
    int result = next(file, size);
    pthread_mutex_unlock(&lock);
    return result;
}

/* Moves the notes to those that no call takes back. */
static void lose(void) {
    char bytes[4096];
    ssize_t length;
    int undo = open(getenv("DISK_UNDO"), O_RDONLY);
    while (undo >= 0 && (length = read(undo, bytes, sizeof bytes)) > 0) {
        append(getenv("DISK_LOST"), bytes, length);
    }
    close(undo);
}

/* The notes of all files are dropped, although one is synchronized: only one is written at a time. */
static int sync_with(int file, const char *name) {
    int (*next)(int) = dlsym(RTLD_NEXT, name);
    if (!is_ours(file)) return next(file);
    pthread_mutex_lock(&lock);
    int result = next(file);
    int fails = !access(getenv("DISK_FAILS"), F_OK);
    if (fails) lose();
    if (truncate(getenv("DISK_UNDO"), 0) && errno != ENOENT) abort();
    pthread_mutex_unlock(&lock);
    if (fails) {
        errno = EIO;
        return -1;
    }
    return result;
}

int fsync(int file) { return sync_with(file, "fsync"); }
int fdatasync(int file) { return sync_with(file, "fdatasync"); }
