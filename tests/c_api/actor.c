/* A peer or a master in C for the tests: obeys lines on its standard input, answers each with one line: the order, its
 * result code, and facts. C99 and POSIX, nothing else. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The C library's own flag of every handler that was ever set; it means nothing to a program. */
enum { RESTORER = 0x04000000 };

enum { PERIOD = 251, TENSORS_MAX = 64, WORDS_MAX = 8, LINE_BYTES = 1024 };

static pcclComm_t* comm;
static pcclMasterInstance_t* master;
static float* tensors[TENSORS_MAX];
static pcclAsyncReduceOp_t launched[TENSORS_MAX];
static size_t lengths[TENSORS_MAX];

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static void say(const char* order, int result, const char* facts) {
    printf("%s %d %s%s%s\n", order, result, facts, result != 0 ? "text=" : "",
           result != 0 ? pcclGetLastErrorText() : "");
    fflush(stdout);
}

static ccoip_socket_address_t loopback(unsigned port, int six) {
    ccoip_socket_address_t address;
    memset(&address, 0, sizeof address);
    address.inet.protocol = six ? inetIPv6 : inetIPv4;
    address.inet.ipv4.data[0] = 127;
    address.inet.ipv4.data[3] = 1;
    address.inet.ipv6.data[15] = 1;
    address.port = (uint16_t)port;
    return address;
}

/* ── tensors ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static float* fill(int slot, size_t count, double share) {
    free(tensors[slot]);
    tensors[slot] = malloc(count * sizeof(float) + 1);
    lengths[slot] = count;
    for (size_t at = 0; at < count; at++) tensors[slot][at] = (float)(at % PERIOD) + (float)share;
    return tensors[slot];
}

/* The least and the greatest difference from so many times the pattern. */
static void surplus(const float* values, size_t count, double times, char* facts) {
    double least = 0.0, most = 0.0;
    for (size_t at = 0; at < count; at++) {
        const double more = values[at] - times * (double)(at % PERIOD);
        least = at == 0 || more < least ? more : least;
        most = at == 0 || more > most ? more : most;
    }
    sprintf(facts + strlen(facts), "least=%g most=%g ", least, most);
}

static pcclReduceDescriptor_t descriptor(size_t count, uint64_t tag) {
    pcclReduceDescriptor_t made;
    memset(&made, 0, sizeof made);
    made.count = count;
    made.tag = tag;
    made.src_descriptor.datatype = pcclFloat;
    return made;
}

static void tell(const pcclReduceInfo_t* info, char* facts) {
    sprintf(facts + strlen(facts), "peers=%u tx=%llu rx=%llu ", (unsigned)info->local_world_size,
            (unsigned long long)info->tx_bytes, (unsigned long long)info->rx_bytes);
}

/* reduce COUNT SHARE TAG OP APART QUANTISED */
static int reduce(char** words, char* facts) {
    const size_t count = strtoul(words[1], NULL, 10);
    const double share = atof(words[2]);
    pcclReduceDescriptor_t described = descriptor(count, strtoull(words[3], NULL, 10));
    described.op = (pcclRedOp_t)atoi(words[4]);
    if (atoi(words[6])) described.quantization_options.algorithm = pcclQuantMinMax;
    float *send = fill(0, count, share), *recv = atoi(words[5]) ? fill(1, count, 0.0) : send;
    pcclReduceInfo_t info;
    memset(&info, 0, sizeof info);
    const int result = pcclAllReduce(send, recv, &described, comm, &info);
    tell(&info, facts);
    surplus(recv, count, result == 0 && described.op == pcclSum ? (double)info.local_world_size : 1.0, facts);
    return result;
}

static int launch(char** words) {
    const int slot = atoi(words[1]);
    const size_t count = strtoul(words[2], NULL, 10);
    const pcclReduceDescriptor_t described = descriptor(count, (uint64_t)slot);
    float* tensor = fill(slot, count, atof(words[3]));
    return pcclAllReduceAsync(tensor, tensor, &described, comm, &launched[slot]);
}

static int await_launched(char** words, char* facts) {
    const int slot = atoi(words[1]);
    pcclReduceInfo_t info;
    memset(&info, 0, sizeof info);
    const int result = pcclAwaitAsyncReduce(&launched[slot], &info);
    tell(&info, facts);
    surplus(tensors[slot], lengths[slot], result == 0 ? (double)info.local_world_size : 1.0, facts);
    return result;
}

/* many NUMBER COUNT SHARE IN_FLIGHT */
static int many(char** words, char* facts) {
    const size_t number = strtoul(words[1], NULL, 10), count = strtoul(words[2], NULL, 10);
    pcclReduceOpDescriptor_t described[TENSORS_MAX];
    for (size_t slot = 0; slot < number; slot++) {
        described[slot].sendbuf = described[slot].recvbuf = fill((int)slot, count, atof(words[3]));
        described[slot].descriptor = descriptor(count, slot);
    }
    pcclReduceInfo_t info;
    memset(&info, 0, sizeof info);
    const int result = pcclAllReduceMultipleWithRetry(described, number, comm, &info, atoi(words[4]));
    tell(&info, facts);
    for (size_t slot = 0; slot < number; slot++) surplus(tensors[slot], count, (double)info.local_world_size, facts);
    return result;
}

/* sync REVISION SHARE COUNT STRATEGY NAME: the struct and its memory are gone when this returns. */
static int sync_state(char** words, char* facts) {
    const size_t count = strtoul(words[3], NULL, 10);
    pcclTensorInfo_t info;
    memset(&info, 0, sizeof info);
    info.name = words[5];
    info.data = fill(0, count, atof(words[2]));
    info.count = count;
    info.datatype = pcclFloat;
    pcclSharedState_t state;
    state.revision = strtoull(words[1], NULL, 10);
    state.count = 1;
    state.infos = &info;
    pcclSharedStateSyncInfo_t moved;
    memset(&moved, 0, sizeof moved);
    const int result = pcclSynchronizeSharedState(comm, &state, (pcclSharedStateSyncStrategy_t)atoi(words[4]), &moved);
    uint64_t digest = 14695981039346656037u; /* FNV-1a */
    for (size_t at = 0; at < count * sizeof(float); at++)
        digest = (digest ^ ((unsigned char*)tensors[0])[at]) * 1099511628211u;
    sprintf(facts, "revision=%llu tx=%llu rx=%llu digest=%llu ", (unsigned long long)state.revision,
            (unsigned long long)moved.tx_bytes, (unsigned long long)moved.rx_bytes, (unsigned long long)digest);
    memset(tensors[0], 0xff, count * sizeof(float));
    free(tensors[0]);
    tensors[0] = NULL;
    return result;
}

/* ── wrong arguments ─────────────────────────────────────────────────────────────────────────────────────────────── */

static int nulls(char* facts) {
    float value = 1.0f;
    int size;
    bool pending;
    pcclReduceDescriptor_t described = descriptor(1, 0), unknown = described;
    pcclReduceOpDescriptor_t one = {&value, &value, described};
    pcclAsyncReduceOp_t handle, strange = {comm, 12345};
    pcclSharedState_t nothing = {0, 1, NULL};
    pcclTensorInfo_t on_device = {"x", &value, 1, pcclFloat, pcclDeviceCuda, false};
    pcclSharedState_t device = {0, 1, &on_device};
    unknown.op = (pcclRedOp_t)99;
    const int results[] = {
        pcclGetBuildInfo(NULL),
        pcclCreateCommunicator(NULL, &comm),
        pcclConnect(NULL),
        pcclDestroyCommunicator(NULL),
        pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, NULL),
        pcclGetAttribute(comm, (pcclAttribute_t)77, &size),
        pcclUpdateTopology(NULL),
        pcclArePeersPending(comm, NULL),
        pcclArePeersPending(NULL, &pending),
        pcclOptimizeTopology(NULL),
        pcclAllReduce(NULL, &value, &described, comm, NULL),
        pcclAllReduce(&value, NULL, &described, comm, NULL),
        pcclAllReduce(&value, &value, NULL, comm, NULL),
        pcclAllReduce(&value, &value, &described, NULL, NULL),
        pcclAllReduce(&value, &value, &unknown, comm, NULL),
        pcclAllReduceAsync(&value, &value, &described, comm, NULL),
        pcclAllReduceAsync(&value, &value, &described, NULL, &handle),
        pcclAwaitAsyncReduce(NULL, NULL),
        pcclAwaitAsyncReduce(&strange, NULL),
        pcclAllReduceMultipleWithRetry(NULL, 1, comm, NULL, 1),
        pcclAllReduceMultipleWithRetry(&one, 0, comm, NULL, 1),
        pcclAllReduceMultipleWithRetry(&one, 1, comm, NULL, -1),
        pcclSynchronizeSharedState(comm, NULL, PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY, NULL),
        pcclSynchronizeSharedState(comm, &nothing, PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY, NULL),
        pcclSynchronizeSharedState(comm, &device, PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY, NULL),
        pcclCreateMaster(loopback(1, 0), NULL),
        pcclRunMaster(NULL),
        pcclInterruptMaster(NULL),
        pcclMasterAwaitTermination(NULL),
        pcclDestroyMaster(NULL),
    };
    for (size_t at = 0; at < sizeof results / sizeof *results; at++) sprintf(facts + strlen(facts), "%d ", results[at]);
    return 0;
}

/* ── what a guest leaves alone ───────────────────────────────────────────────────────────────────────────────────── */

static struct sigaction actions[NSIG];
static sigset_t mask;
static volatile sig_atomic_t alarms, strays;

static void look_around(void) {
    for (int number = 1; number < NSIG; number++) sigaction(number, NULL, &actions[number]);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
}

/* How many signals do something else than in the beginning, or are blocked and were not; and the locale. */
static void compare(char* facts) {
    int changed = 0, blocked = 0;
    sigset_t masked;
    pthread_sigmask(SIG_SETMASK, NULL, &masked);
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) != 0) continue;
        const int flags = (action.sa_flags ^ actions[number].sa_flags) & ~RESTORER;
        changed += action.sa_handler != actions[number].sa_handler || flags != 0;
        blocked += sigismember(&masked, number) != sigismember(&mask, number);
    }
    sprintf(facts, "changed=%d blocked=%d locale=%s alarms=%d strays=%d ", changed, blocked, setlocale(LC_CTYPE, NULL),
            (int)alarms, (int)strays);
}

static void on_alarm(int number) {
    (void)number;
    alarms++;
    strays += syscall(SYS_gettid) != getpid();
}

/* A thousand a second. `hidden`: the program's only thread blocks them, so that any thread of ours would get them. */
static void ring_alarms(int hidden) {
    struct sigaction action;
    struct itimerval each = {{0, 1000}, {0, 1000}};
    sigset_t alarm_only;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    if (hidden) pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
    setitimer(ITIMER_REAL, &each, NULL);
    look_around();
}

static void interrupt_master(int number) {
    (void)number;
    errno = 42;
    pcclInterruptMaster(master);
    if (errno != 42) _exit(99);
}

/* A child that tries to use what is its parent's, says what came of it, and lives on. */
static int fork_child(char* facts) {
    const pid_t child = fork();
    if (child == 0) {
        const double began = now();
        int size;
        facts[0] = '\0';
        const int results[] = {pcclUpdateTopology(comm),
                               pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &size), pcclInit(),
                               pcclInterruptMaster((pcclMasterInstance_t*)&size)};
        sprintf(facts, "results=%d,%d,%d,%d seconds=%.3f ", results[0], results[1], results[2], results[3],
                now() - began);
        say("child", results[0], facts);
        for (;;) pause();
    }
    sprintf(facts, "child=%d ", (int)child);
    return child < 0;
}

struct ending {
    int code, milliseconds;
};

static void* exit_soon(void* given) {
    const struct ending* ending = given;
    const struct timespec moment = {0, 1000000L * ending->milliseconds};
    nanosleep(&moment, NULL);
    exit(ending->code);
    return NULL;
}

/* End the process after so many milliseconds, in the middle of what the main thread does then. */
static int exit_later(char** words) {
    static struct ending ending;
    pthread_t thread;
    ending.code = atoi(words[1]);
    ending.milliseconds = atoi(words[2]);
    return pthread_create(&thread, NULL, exit_soon, &ending);
}

/* ── orders ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int of_peer(char** words, char* facts) {
    const char* order = words[0];
    if (strcmp(order, "create") == 0) {
        pcclCommCreateParams_t params;
        memset(&params, 0, sizeof params);
        params.master_address = loopback((unsigned)atoi(words[1]), atoi(words[2]));
        params.peer_group = (uint32_t)atoi(words[3]);
        return pcclCreateCommunicator(&params, &comm);
    }
    if (strcmp(order, "connect") == 0) return pcclConnect(comm);
    if (strcmp(order, "update") == 0) return pcclUpdateTopology(comm);
    if (strcmp(order, "optimise") == 0) return pcclOptimizeTopology(comm);
    if (strcmp(order, "destroy") == 0) return pcclDestroyCommunicator(comm);
    if (strcmp(order, "reduce") == 0) return reduce(words, facts);
    if (strcmp(order, "launch") == 0) return launch(words);
    if (strcmp(order, "await") == 0) return await_launched(words, facts);
    if (strcmp(order, "many") == 0) return many(words, facts);
    if (strcmp(order, "sync") == 0) return sync_state(words, facts);
    if (strcmp(order, "size") == 0) {
        int size = -1;
        const int result = pcclGetAttribute(comm, (pcclAttribute_t)atoi(words[1]), &size);
        sprintf(facts, "size=%d ", size);
        return result;
    }
    if (strcmp(order, "pending") == 0 || strcmp(order, "await_pending") == 0) {
        bool pending = false;
        int result;
        do result = pcclArePeersPending(comm, &pending);
        while (result == 0 && !pending && strcmp(order, "await_pending") == 0);
        sprintf(facts, "pending=%d ", pending);
        return result;
    }
    return -1;
}

static int of_master(char** words) {
    const char* order = words[0];
    if (strcmp(order, "create_master") == 0) return pcclCreateMaster(loopback((unsigned)atoi(words[1]), 0), &master);
    if (strcmp(order, "run_master") == 0) return pcclRunMaster(master);
    if (strcmp(order, "interrupt_master") == 0) return pcclInterruptMaster(master);
    if (strcmp(order, "await_master") == 0) return pcclMasterAwaitTermination(master);
    if (strcmp(order, "destroy_master") == 0) return pcclDestroyMaster(master);
    if (strcmp(order, "interrupt_on_sigterm") == 0) return signal(SIGTERM, interrupt_master) == SIG_ERR;
    return -1;
}

static int obey(char** words, char* facts) {
    const char* order = words[0];
    if (strcmp(order, "init") == 0) {
        const double began = now();
        const int result = pcclInit();
        sprintf(facts, "seconds=%.3f ", now() - began);
        return result;
    }
    if (strcmp(order, "build") == 0) {
        pcclBuildInfo_t info;
        const int result = pcclGetBuildInfo(&info);
        sprintf(facts, "cuda=%d ", info.has_cuda_support);
        return result;
    }
    if (strcmp(order, "nulls") == 0) return nulls(facts);
    if (strcmp(order, "compare") == 0) return compare(facts), 0;
    if (strcmp(order, "alarms") == 0) return ring_alarms(atoi(words[1])), 0;
    if (strcmp(order, "fork") == 0) return fork_child(facts);
    if (strcmp(order, "exit_later") == 0) return exit_later(words);
    if (strcmp(order, "exit") == 0) exit(atoi(words[1]));
    const int result = of_master(words);
    return result != -1 ? result : of_peer(words, facts);
}

int main(void) {
    static char line[LINE_BYTES], facts[8 * LINE_BYTES];
    look_around();
    say("ready", 0, "");
    while (fgets(line, sizeof line, stdin) != NULL) {
        char* words[WORDS_MAX] = {NULL};
        int count = 0;
        for (char* word = strtok(line, " \n"); word != NULL && count < WORDS_MAX; word = strtok(NULL, " \n"))
            words[count++] = word;
        facts[0] = '\0';
        const int result = obey(words, facts);
        say(words[0], result, facts);
    }
    return 0;
}
