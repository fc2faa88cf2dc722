/* Preloaded into Leasehold, this stands for a disk that loses power, fails or lies, for the files whose names contain
 * DISK_FILES.
 *
 * Each write is noted in the file DISK_UNDO, with what was there before, until the file is synchronized: a test that kills
 * the process can then take back whatever a loss of power may take back. A note is a header of numbers and the former
 * content; a disk writes whole sectors, so notes are about whole sectors, too.
 *
 * While the file DISK_ROOM exists, the directory DISK_DIRECTORY has room for as many bytes as that file says, counted in
 * blocks as a file system does: writing to where a file has no block yet fails with ENOSPC beyond that. While the file
 * DISK_COPIES exists, so does writing to where it has one, as on a file system that writes to other blocks each time. If
 * the environment has DISK_STOP, the process is killed before that many of its next steps on the disk, after the first such
 * failure.
 *
 * While the file DISK_FAILS exists, synchronizing fails with the error whose number it has. As on Linux, the next call
 * succeeds, although what the failed one was to write may be lost: its notes go to the file DISK_LOST. While the file
 * DISK_LIES exists, synchronizing succeeds, and its notes go there, too. What is written and synchronized later in the same
 * place is not lost any more, which another note there says.
 *
 * While the file DISK_KILLS exists, the process is killed before it gives another file one of the names. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { SECTOR = 512 };

struct note {
    uint64_t inode, offset, length, size_before;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int path_of(int file, char path[4096]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, 4095);
    path[length < 0 ? 0 : length] = 0;
    return length > 0;
}

static int is_ours(int file) {
    char path[4096];
    const char *names = getenv("DISK_FILES");
    return names && path_of(file, path) && strstr(path, names) != 0;
}

static int is_in_directory(const char *path) {
    const char *directory = getenv("DISK_DIRECTORY");
    return directory && !strncmp(path, directory, strlen(directory));
}

/* How many bytes the directory has room for; negative if nothing limits them. */
static long long room(void) {
    char text[32];
    const char *name = getenv("DISK_ROOM");
    int file = name ? open(name, O_RDONLY) : -1;
    if (file < 0) return -1;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return -1;
    text[length] = 0;
    return atoll(text);
}

static long long used(void) {
    const char *name = getenv("DISK_DIRECTORY");
    DIR *directory = opendir(name);
    long long blocks = 0;
    struct dirent *entry;
    struct stat status;
    if (!directory) abort();
    while ((entry = readdir(directory))) {
        if (fstatat(dirfd(directory), entry->d_name, &status, 0)) continue;
        if (S_ISREG(status.st_mode)) blocks += status.st_blocks;
    }
    closedir(directory);
    return blocks * SECTOR;
}

static int has_been_full;

/* Counts a step on the disk after it was full, and ends the process before the one that is asked for. */
static void step(void) {
    static long long steps;
    const char *stop = getenv("DISK_STOP");
    if (has_been_full && stop && ++steps > atoll(stop)) raise(SIGKILL);
}

static int has_no_room(int file, off_t offset, size_t length) {
    char path[4096];
    long long limit;
    if (!path_of(file, path) || !is_in_directory(path)) return 0;
    step();
    if ((limit = room()) < 0) return 0;
    off_t hole = lseek(file, offset, SEEK_HOLE);
    int is_written_in_place = access(getenv("DISK_COPIES"), F_OK);
    if (is_written_in_place && hole >= 0 && hole >= offset + (off_t)length) return 0;
    if (used() + (long long)length <= limit) return 0;
    has_been_full = 1;
    return 1;
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

static int has_lost(void) {
    struct stat status;
    return !stat(getenv("DISK_LOST"), &status) && status.st_size > 0;
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
    if (!status.st_size && has_lost()) {
        /* A new file, perhaps with the number of one that is gone: what was lost of that one is of no importance. */
        header.length = 0;
        append(getenv("DISK_LOST"), &header, sizeof header);
    }
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off_t offset) {
    pthread_mutex_lock(&lock);
    int is_full = has_no_room(file, offset, length);
    pthread_mutex_unlock(&lock);
    if (is_full) {
        errno = ENOSPC;
        return -1;
    }
    if (!is_ours(file)) return real_pwrite(file, bytes, length, offset);
    pthread_mutex_lock(&lock);
    note(file, offset, length);
    ssize_t written = real_pwrite(file, bytes, length, offset);
    pthread_mutex_unlock(&lock);
    return written;
}

int ftruncate64(int file, off_t size) {
    static int (*next)(int, off_t);
    char path[4096];
    if (!next) next = dlsym(RTLD_NEXT, "ftruncate64");
    if (path_of(file, path) && is_in_directory(path)) step();
    if (!is_ours(file)) return next(file, size);
    struct stat status;
    pthread_mutex_lock(&lock);
    if (fstat(file, &status)) abort();
    note(file, size, status.st_size > size ? status.st_size - size : 0);
    int result = next(file, size);
    pthread_mutex_unlock(&lock);
    return result;
}

/* Adds the notes to those of what was lost: it is, or it is not any more. */
static void add_to_lost(int is_lost) {
    struct note header;
    int undo = open(getenv("DISK_UNDO"), O_RDONLY);
    while (undo >= 0 && read(undo, &header, sizeof header) == sizeof header) {
        char *record = malloc(sizeof header + header.length);
        if (read(undo, record + sizeof header, header.length) != (ssize_t)header.length) abort();
        if (!is_lost) header.size_before = UINT64_MAX;
        memcpy(record, &header, sizeof header);
        append(getenv("DISK_LOST"), record, sizeof header + header.length);
        free(record);
    }
    if (undo >= 0) close(undo);
}

/* The error with which synchronizing fails; 0 if it does not. */
static int failure(void) {
    char text[8];
    int file = open(getenv("DISK_FAILS"), O_RDONLY);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    return atoi(text);
}

/* The notes of all files are dropped, although one is synchronized: only one is written at a time. */
static int sync_with(int file, const char *name) {
    int (*next)(int) = dlsym(RTLD_NEXT, name);
    char path[4096];
    if (path_of(file, path) && is_in_directory(path)) step();
    if (!is_ours(file)) return next(file);
    pthread_mutex_lock(&lock);
    int result = next(file);
    int error = failure();
    int is_lost = error || !access(getenv("DISK_LIES"), F_OK);
    if (is_lost || has_lost()) add_to_lost(is_lost);
    if (truncate(getenv("DISK_UNDO"), 0) && errno != ENOENT) abort();
    pthread_mutex_unlock(&lock);
    if (error) {
        errno = error;
        return -1;
    }
    return result;
}

int fsync(int file) { return sync_with(file, "fsync"); }
int fdatasync(int file) { return sync_with(file, "fdatasync"); }

int unlink(const char *path) {
    int (*next)(const char *) = dlsym(RTLD_NEXT, "unlink");
    if (is_in_directory(path)) step();
    return next(path);
}

int rename(const char *from, const char *to) {
    int (*next)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    const char *kills = getenv("DISK_KILLS");
    if (is_in_directory(to)) step();
    if (kills && strstr(to, getenv("DISK_FILES")) && !access(kills, F_OK)) raise(SIGKILL);
    return next(from, to);
}

int statvfs(const char *path, struct statvfs *found) {
    int (*next)(const char *, struct statvfs *) = dlsym(RTLD_NEXT, "statvfs");
    int result = next(path, found);
    long long limit;
    if (result || !is_in_directory(path) || (limit = room()) < 0) return result;
    long long bytes = used();
    found->f_bavail = found->f_bfree = limit > bytes ? (limit - bytes) / found->f_frsize : 0;
    return 0;
}

int statvfs64(const char *path, struct statvfs64 *found) { return statvfs(path, (struct statvfs *)found); }
