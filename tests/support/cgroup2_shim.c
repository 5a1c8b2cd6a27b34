/* Makes a directory look like a tree of control groups, version 2, to systemd's user manager: it
   takes statfs(2)'s word for it, and needs files in each group. It is preloaded into the manager,
   and not into its services. What is written there has no effect. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#define TREE "/sys/fs/cgroup"
#define CGROUP2_SUPER_MAGIC 0x63677270
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const files[][2] = {
    {"cgroup.procs", ""},
    {"cgroup.controllers", ""},
    {"cgroup.subtree_control", ""},
    {"cgroup.type", "domain\n"},
    {"cgroup.events", "populated 0\nfrozen 0\n"},
};

static int in_tree(const char *path) { return strncmp(path, TREE, strlen(TREE)) == 0; }

static int fd_in_tree(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return in_tree(path);
}

int statfs(const char *path, struct statfs *found) {
    int result = REAL(statfs)(path, found);
    if (result == 0 && in_tree(path)) found->f_type = CGROUP2_SUPER_MAGIC;
    return result;
}

int statfs64(const char *path, struct statfs64 *found) {
    int result = REAL(statfs64)(path, found);
    if (result == 0 && in_tree(path)) found->f_type = CGROUP2_SUPER_MAGIC;
    return result;
}

int fstatfs(int fd, struct statfs *found) {
    int result = REAL(fstatfs)(fd, found);
    if (result == 0 && fd_in_tree(fd)) found->f_type = CGROUP2_SUPER_MAGIC;
    return result;
}

int fstatfs64(int fd, struct statfs64 *found) {
    int result = REAL(fstatfs64)(fd, found);
    if (result == 0 && fd_in_tree(fd)) found->f_type = CGROUP2_SUPER_MAGIC;
    return result;
}

/* A new group has its files from the kernel, and they do not keep it from being removed. */

int mkdir(const char *path, mode_t mode) {
    int result = REAL(mkdir)(path, mode);
    if (result != 0 || !in_tree(path)) return result;
    for (size_t i = 0; i < COUNT(files); i++) {
        char file[PATH_MAX];
        snprintf(file, sizeof file, "%s/%s", path, files[i][0]);
        int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) continue;
        if (write(fd, files[i][1], strlen(files[i][1])) < 0) perror(file);
        close(fd);
    }
    return 0;
}

int rmdir(const char *path) {
    for (size_t i = 0; in_tree(path) && i < COUNT(files); i++) {
        char file[PATH_MAX];
        snprintf(file, sizeof file, "%s/%s", path, files[i][0]);
        unlink(file);
    }
    return REAL(rmdir)(path);
}

/* Real groups have no zombies in cgroup.procs; ours keep whoever was written there. */

int kill(pid_t pid, int number) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        ssize_t length = read(fd, line, sizeof line - 1);
        close(fd);
        line[length > 0 ? length : 0] = 0;
        const char *name_end = strrchr(line, ')');
        if (name_end != NULL && name_end[1] != 0 && name_end[2] == 'Z') {
            errno = ESRCH;
            return -1;
        }
    }
    return REAL(kill)(pid, number);
}
