// What code that an attacker got to run in a native program tries. Each line printed: what, and its errno (0: it got it).
// Loaded with LD_PRELOAD, so it runs before the program's own code. Arguments come as variables.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

static void said(const char* what, long result) {
    printf("attack %s %d\n", what, result < 0 ? errno : 0);
    fflush(stdout);
}

static int opened(pid_t pid, const char* file, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    return open(path, flags);
}

static int connected(const char* path, int is_abstract) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path + is_abstract, path, sizeof to.sun_path - 2);
    int one = socket(AF_UNIX, SOCK_STREAM, 0);
    if (one < 0) {
        return -1;
    }
    return connect(one, (struct sockaddr*)&to, offsetof(struct sockaddr_un, sun_path) + is_abstract + strlen(path));
}

static int connected_tcp(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = socket(AF_INET, SOCK_STREAM, 0);
    return one < 0 ? -1 : connect(one, (struct sockaddr*)&to, sizeof to);
}

static int sent_udp(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = socket(AF_INET, SOCK_DGRAM, 0);
    return one < 0 ? -1 : (int)sendto(one, "x", 1, 0, (struct sockaddr*)&to, sizeof to);
}

static int sent_from_a_pair(const char* path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path, path, sizeof to.sun_path - 1);
    struct iovec bytes = {"x", 1};
    struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &bytes, .msg_iovlen = 1};
    int pair[2];
    return socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) < 0 ? -1 : (int)sendmsg(pair[0], &message, 0);
}

static int watched(const char* folder) {
    int one = inotify_init();
    return one < 0 ? -1 : inotify_add_watch(one, folder, IN_ALL_EVENTS);
}

static int own_socket(void) {
    int pair[2] = {-1, -1};
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    return pair[0];
}

static int made_idle(pid_t pid) {
    struct sched_param none = {0};
    return sched_setscheduler(pid, SCHED_IDLE, &none);
}

static int forked(void) {
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    return child;
}

static int executed(const char* program) {
    // A process of its own would hide what happens, so a success ends this one, without the lines that follow.
    unsetenv("ATTACK_PID");
    return execl(program, program, "-c", "echo attack exec-ran 0", (char*)NULL);
}

static void* nothing(void* argument) { return argument; }

__attribute__((constructor)) static void attack(void) {
    if (getenv("ATTACK_PID") == NULL) {
        return;  // the interpreter that confines
    }
    const pid_t daemon = atoi(getenv("ATTACK_PID"));
    const int port = atoi(getenv("ATTACK_PORT"));
    const char* folder = getenv("ATTACK_FOLDER");
    char path[512];
    char bytes[8] = {0};

    // Files.
    snprintf(path, sizeof path, "%s/secret", folder);
    said("read-secret", open(path, O_RDONLY));
    said("write-secret", open(path, O_WRONLY));
    said("truncate-secret", truncate(path, 0));
    said("chmod-secret", chmod(path, 0666));
    said("unlink-secret", unlink(path));
    snprintf(path, sizeof path, "%s/new", folder);
    said("create-file", open(path, O_CREAT | O_WRONLY, 0600));
    said("make-folder", mkdir(path, 0700));
    said("list-folder", open(folder, O_RDONLY | O_DIRECTORY));
    said("watch-folder", watched(folder));
    said("lock-program", flock(open("/proc/self/exe", O_RDONLY), LOCK_SH));
    said("lease-program", fcntl(open("/proc/self/exe", O_RDONLY), F_SETLEASE, F_RDLCK));
    said("read-passwords", open("/etc/passwd", O_RDONLY));
    said("memory-file", memfd_create("x", 0));

    // Memory: more than the machine has, of which nothing is used yet.
    said("much-memory", (long)mmap(NULL, 1L << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

    // The daemon.
    said("daemon-memory", opened(daemon, "mem", O_RDONLY));
    said("daemon-environment", opened(daemon, "environ", O_RDONLY));
    said("daemon-arguments", opened(daemon, "cmdline", O_RDONLY));
    said("daemon-descriptor", opened(daemon, "fd/0", O_RDONLY));
    struct iovec here = {bytes, sizeof bytes}, there = {(void*)&attack, sizeof bytes};
    said("daemon-read", process_vm_readv(daemon, &here, 1, &there, 1, 0));
    said("daemon-write", process_vm_writev(daemon, &here, 1, &there, 1, 0));
    said("daemon-traced", ptrace(PTRACE_SEIZE, daemon, 0, 0));
    said("daemon-signal", kill(daemon, 0));
    said("daemon-signal-thread", syscall(SYS_tgkill, daemon, daemon, 0));
    struct rlimit limit;
    said("daemon-limits", syscall(SYS_prlimit64, daemon, RLIMIT_NOFILE, NULL, &limit));
    said("daemon-signal-by-socket", fcntl(own_socket(), F_SETOWN, daemon));
    said("daemon-priority", setpriority(PRIO_PROCESS, daemon, 19));
    said("daemon-idle", made_idle(daemon));
    said("daemon-pidfd", syscall(SYS_pidfd_open, daemon, 0));

    // The network.
    snprintf(path, sizeof path, "%s/socket", folder);
    said("connect-tcp", connected_tcp(port));
    said("send-udp", sent_udp(port));
    said("connect-unix", connected(path, 0));
    snprintf(path, sizeof path, "%s/datagrams", folder);
    said("send-unix", sent_from_a_pair(path));
    said("connect-abstract", connected(getenv("ATTACK_ABSTRACT"), 1));

    // Other processes, and the system.
    said("fork", forked());
    said("new-session", setsid());
    said("unshare", syscall(SYS_unshare, 0x10000000 /* CLONE_NEWUSER */));
    said("perf", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    said("io-uring", syscall(SYS_io_uring_setup, 1, bytes));
    said("keyring", syscall(SYS_keyctl, 0, 0));

    // What the program itself needs.
    pthread_t thread;
    errno = pthread_create(&thread, NULL, nothing, NULL);
    said("own-thread", errno ? -1 : 0);
    said("own-signal", syscall(SYS_tgkill, getpid(), gettid(), 0));
    said("own-maps", open("/proc/self/maps", O_RDONLY));
    said("own-sockets", socketpair(AF_UNIX, SOCK_STREAM, 0, (int[2]){0}));

    said("exec", executed("/bin/sh"));
}
