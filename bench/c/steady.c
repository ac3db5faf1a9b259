// A steady load for DNS over UDP: open loop, so a slow answer delays no later question, and every wait is seen.
// steady PORT NAMES SECONDS QPS
//   NAMES   lines "name TYPE GROUP", asked in turn; GROUP is 0 or 1 and gets percentiles of its own
// A query leaves at its time of an absolute schedule; its latency is the kernel's time stamp of the reply less the clock
// right before the send. Runs with real-time priority where it may (fifo 1). Every reply is checked: id outstanding,
// question the same byte for byte, NOERROR with an answer; anything else is wrong. Prints one line of words and numbers:
// late_us is how far behind its schedule the worst query left, max_at_s when the slowest reply was asked for, over5ms
// how many waited longer than that.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#define NAMES_MAX 131072
#define PACKET 300
#define LOST_MS 2000
#define PRIORITY 50

typedef struct {
  int size, group;
  uint8_t packet[PACKET];
} Name;

typedef struct {
  uint64_t sent_ns, began_ns;
  Name *name;  // 0: nothing outstanding
} Slot;

static Name *names;
static Slot slots[65536];
static int name_count, sock;
static uint64_t sent, received, right, wrong, unsent, late_ns, first_ns, max_ns, max_at_ns, over5ms;
static uint32_t *took_ns[3], took[3];  // group 0, group 1, all

static uint64_t clock_ns(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int type_number(const char *word) {
  if (!strcmp(word, "AAAA")) return 28;
  if (!strcmp(word, "SRV")) return 33;
  return 1;
}

static void read_names(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) {
    perror(path);
    exit(1);
  }
  names = calloc(NAMES_MAX, sizeof *names);
  char line[600], text[300], type[16];
  int group;
  while (name_count < NAMES_MAX && fgets(line, sizeof line, file)) {
    strcpy(type, "A");
    group = 0;
    if (sscanf(line, "%199s %15s %d", text, type, &group) < 1) continue;
    Name *name = &names[name_count++];
    uint8_t *p = name->packet;
    p[2] = 1, p[5] = 1;
    int at = 12;
    for (char *label = strtok(text, "."); label; label = strtok(0, ".")) {
      int size = strlen(label);
      p[at++] = size;
      memcpy(p + at, label, size);
      at += size;
    }
    int number = type_number(type);
    uint8_t tail[5] = {0, number >> 8, number, 0, 1};
    memcpy(p + at, tail, 5);
    name->size = at + 5;
    name->group = group & 1;
  }
  fclose(file);
  if (!name_count) exit(1);
}

static void judge(uint8_t *reply, int size, uint64_t at_ns) {
  Slot *slot = &slots[reply[0] << 8 | reply[1]];
  Name *name = slot->name;
  if (size < 12 || !name) {
    wrong++;
    return;
  }
  slot->name = 0;
  received++;
  uint64_t ns = at_ns > slot->sent_ns ? at_ns - slot->sent_ns : 0;
  took_ns[name->group][took[name->group]++] = took_ns[2][took[2]++] = ns;
  over5ms += ns > 5000000;
  if (ns > max_ns) max_ns = ns, max_at_ns = slot->began_ns;
  int good = size > name->size && !memcmp(reply + 12, name->packet + 12, name->size - 12) && !(reply[3] & 15);
  if (good && (reply[6] | reply[7])) right++;
  else wrong++;
}

static void receive(void) {
  static uint8_t data[65536], control[256];
  for (;;) {
    struct iovec vector = {data, sizeof data};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int size = recvmsg(sock, &message, MSG_DONTWAIT);
    if (size < 0) return;
    uint64_t at_ns = clock_ns(CLOCK_REALTIME);
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part))
      if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_TIMESTAMPNS) {
        struct timespec t;
        memcpy(&t, CMSG_DATA(part), sizeof t);
        at_ns = t.tv_sec * 1000000000ull + t.tv_nsec;
      }
    judge(data, size, at_ns);
  }
}

static void ask(unsigned id, uint64_t due_ns) {
  Name *name = &names[sent % name_count];
  Slot *slot = &slots[id];
  name->packet[0] = id >> 8, name->packet[1] = id;
  uint64_t now = clock_ns(CLOCK_MONOTONIC);
  if (now - due_ns > late_ns) late_ns = now - due_ns;
  *slot = (Slot){clock_ns(CLOCK_REALTIME), now, name};
  sent++;
  if (send(sock, name->packet, name->size, MSG_DONTWAIT) != name->size) slot->name = 0, unsent++;
}

static void wait_for_the_last(void) {
  for (uint64_t ends = clock_ns(CLOCK_MONOTONIC) + LOST_MS * 1000000ull; clock_ns(CLOCK_MONOTONIC) < ends;) {
    receive();
    if (received + unsent >= sent) return;
    struct pollfd one = {sock, POLLIN, 0};
    poll(&one, 1, 20);
  }
}

static int rising(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static double percentile(int group, double part) {
  if (!took[group]) return 0;
  uint32_t at = took[group] * part;
  return took_ns[group][at < took[group] ? at : took[group] - 1] / 1000.0;
}

static void print_group(const char *prefix, int group) {
  static const struct { const char *word; double part; } parts[] = {{"p50", 0.5}, {"p99", 0.99}, {"p999", 0.999}};
  for (int i = 0; i < 3; i++) printf("%s%s_us %.1f ", prefix, parts[i].word, percentile(group, parts[i].part));
}

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "steady PORT NAMES SECONDS QPS\n");
    return 2;
  }
  read_names(argv[2]);
  double qps = atof(argv[4]);
  uint64_t total = atof(argv[3]) * qps;
  for (int group = 0; group < 3; group++) took_ns[group] = calloc(total + 1, sizeof **took_ns);
  int on = 1, buffer = 4 << 20;
  sock = socket(AF_INET, SOCK_DGRAM, 0);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  setsockopt(sock, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
  setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
  if (connect(sock, (void *)&to, sizeof to)) {
    perror("connect");
    return 1;
  }
  struct sched_param priority = {.sched_priority = PRIORITY};
  int fifo = !sched_setscheduler(0, SCHED_FIFO, &priority);
  mlockall(MCL_CURRENT);
  first_ns = clock_ns(CLOCK_MONOTONIC) + 1000000;
  for (uint64_t n = 0; n < total; n++) {
    uint64_t due_ns = first_ns + n * (1e9 / qps);
    struct timespec due = {due_ns / 1000000000, due_ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, 0);
    ask(n & 0xffff, due_ns);
    receive();
  }
  wait_for_the_last();
  for (int group = 0; group < 3; group++) qsort(took_ns[group], took[group], sizeof **took_ns, rising);
  printf("sent %lu received %lu right %lu wrong %lu lost %lu fifo %d late_us %.1f ", sent, received, right, wrong,
         sent - received, fifo, late_ns / 1000.0);
  print_group("", 2);
  print_group("group0_", 0);
  print_group("group1_", 1);
  printf("max_us %.1f max_at_s %.3f over5ms %lu\n", max_ns / 1000.0, max_at_ns ? (max_at_ns - first_ns) / 1e9 : 0, over5ms);
  return 0;
}
