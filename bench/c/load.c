// A load generator for DNS over UDP: a closed window over several sockets, sendmmsg and recvmmsg, one thread.
// load PORT NAMES SECONDS WINDOW SOCKETS [edns] [unique] [case]
//   NAMES     lines "name TYPE"; with `unique` a number is put before each name, so that no two queries are equal
//   edns      an OPT record of 1,232 bytes; `case` draws the case of every letter anew
//   WINDOW    queries outstanding; 1 with 1 socket measures the closed loop
// Every reply is checked: id outstanding, question the same byte for byte, rcode; counted: right (NOERROR with an answer),
// nodata, nxdomain, servfail, other, wrong (id or question). Prints one line of words and numbers.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#define BATCH 64
#define PACKET 320
#define NAMES_MAX 131072
#define WINDOW_MAX 1024
#define LOST_NS 2000000000ull

typedef struct {
  uint64_t sent_ns;
  int busy, size;
  uint8_t packet[PACKET];
} Slot;

typedef struct {
  int fd, free_count;
  uint16_t free[WINDOW_MAX], generation[WINDOW_MAX];
  Slot slots[WINDOW_MAX];
} Sock;

static uint8_t (*names)[PACKET];
static int *sizes, name_count, next_name, window, slot_bits, unique, random_case;
static uint64_t number, histogram[64 * 64], sent, received, right, nodata, nxdomain, servfail, other, wrong, lost, sum_ns;
static uint32_t seed = 2463534242u;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint32_t draw(void) {  // xorshift
  seed ^= seed << 13;
  seed ^= seed >> 17;
  return seed ^= seed << 5;
}

static int bucket(uint64_t v) {  // log-linear, 64 sub-buckets
  if (v < 64) return v;
  int e = 63 - __builtin_clzll(v);
  return (e - 5) * 64 + ((v >> (e - 6)) & 63);
}

static double bucket_value(int b) {
  if (b < 64) return b;
  int e = b / 64 + 5;
  return (double)(1ull << e) + (b % 64 + 0.5) * (double)(1ull << (e - 6));
}

static int type_number(const char *word) {
  static const struct { const char *word; int number; } types[] = {{"A", 1}, {"AAAA", 28}, {"SRV", 33}, {"TXT", 16}};
  for (unsigned i = 0; i < sizeof types / sizeof *types; i++)
    if (!strcasecmp(word, types[i].word)) return types[i].number;
  return atoi(word) ? atoi(word) : 1;
}

static void read_names(const char *path, int edns) {
  FILE *file = fopen(path, "r");
  if (!file) {
    perror(path);
    exit(1);
  }
  names = malloc((size_t)NAMES_MAX * PACKET);
  sizes = malloc(NAMES_MAX * sizeof *sizes);
  char line[600], name[400], type[40];
  while (fgets(line, sizeof line, file) && name_count < NAMES_MAX) {
    strcpy(type, "A");
    if (sscanf(line, "%199s %39s", name, type) < 1) continue;
    uint8_t *p = names[name_count];
    memset(p, 0, 12);
    p[2] = 1, p[5] = 1;
    int o = 12;
    if (unique) {
      p[o] = 8;
      o += 9;  // filled in for each query
    }
    for (char *label = strtok(name, "."); label; label = strtok(0, ".")) {
      int l = strlen(label);
      p[o++] = l;
      memcpy(p + o, label, l);
      o += l;
    }
    int t = type_number(type);
    uint8_t tail[5] = {0, t >> 8, t, 0, 1};
    memcpy(p + o, tail, 5);
    o += 5;
    if (edns) {
      static const uint8_t opt[11] = {0, 0, 41, 4, 208};
      p[11] = 1;
      memcpy(p + o, opt, 11);
      o += 11;
    }
    sizes[name_count++] = o;
  }
  fclose(file);
}

static void fill(Slot *slot, unsigned id) {
  slot->size = sizes[next_name];
  memcpy(slot->packet, names[next_name], slot->size);
  slot->packet[0] = id >> 8, slot->packet[1] = id;
  if (unique) {
    char digits[9];
    snprintf(digits, sizeof digits, "%08x", (unsigned)(number++ ^ 0x5bd1e995u));
    memcpy(slot->packet + 13, digits, 8);
  }
  if (random_case)
    for (int at = 12; slot->packet[at]; at += slot->packet[at] + 1)
      for (int i = 1; i <= slot->packet[at]; i++)
        if (isalpha(slot->packet[at + i]) && (draw() & 1)) slot->packet[at + i] ^= 32;
  if (++next_name == name_count) next_name = 0;
}

static void judge(Sock *sock, uint8_t *reply, int size, uint64_t now) {
  unsigned id = reply[0] << 8 | reply[1], at = id & ((1u << slot_bits) - 1);
  Slot *slot = &sock->slots[at];
  if (size < 12 || at >= (unsigned)window || !slot->busy || ((sock->generation[at] << slot_bits | at) & 0xffff) != id) {
    wrong++;
    return;
  }
  int end = 12;
  while (slot->packet[end]) end += slot->packet[end] + 1;
  end += 5;
  uint64_t took = now - slot->sent_ns;
  slot->busy = 0;
  sock->free[sock->free_count++] = at;
  received++, sum_ns += took, histogram[bucket(took)]++;
  if (size < end || memcmp(reply + 12, slot->packet + 12, end - 12)) {
    wrong++;
    return;
  }
  int rcode = reply[3] & 15, answers = reply[6] << 8 | reply[7];
  if (rcode == 0) *(answers ? &right : &nodata) += 1;
  else *(rcode == 3 ? &nxdomain : rcode == 2 ? &servfail : &other) += 1;
}

static int receive(Sock *sock) {
  static uint8_t data[BATCH][2048];
  static struct iovec vectors[BATCH];
  static struct mmsghdr messages[BATCH];
  int any = 0;
  for (;;) {
    for (int i = 0; i < BATCH; i++) {
      vectors[i] = (struct iovec){data[i], sizeof data[i]};
      messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
    }
    int count = recvmmsg(sock->fd, messages, BATCH, MSG_DONTWAIT, 0);
    if (count <= 0) return any;
    any = 1;
    uint64_t now = now_ns();
    for (int i = 0; i < count; i++) judge(sock, data[i], messages[i].msg_len, now);
    if (count < BATCH) return any;
  }
}

static void ask(Sock *sock) {
  static struct iovec vectors[BATCH];
  static struct mmsghdr messages[BATCH];
  while (sock->free_count) {
    int count = sock->free_count < BATCH ? sock->free_count : BATCH;
    uint64_t now = now_ns();
    for (int i = 0; i < count; i++) {
      unsigned at = sock->free[sock->free_count - 1 - i];
      Slot *slot = &sock->slots[at];
      fill(slot, ((++sock->generation[at]) << slot_bits | at) & 0xffff);
      slot->sent_ns = now, slot->busy = 1;
      vectors[i] = (struct iovec){slot->packet, slot->size};
      messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
    }
    int done = sendmmsg(sock->fd, messages, count, MSG_DONTWAIT);
    if (done < 0) done = 0;
    uint16_t unsent[BATCH];
    for (int i = done; i < count; i++) {
      unsent[i - done] = sock->free[sock->free_count - 1 - i];
      sock->slots[unsent[i - done]].busy = 0;
    }
    sock->free_count -= count;
    for (int i = 0; i < count - done; i++) sock->free[sock->free_count++] = unsent[i];
    sent += done;
    if (done < count) return;
  }
}

static int outstanding(Sock *socks, int count) {
  int total = 0;
  for (int i = 0; i < count; i++) total += window - socks[i].free_count;
  return total;
}

static void give_up_lost(Sock *socks, int count, uint64_t now) {
  for (int i = 0; i < count; i++)
    for (int at = 0; at < window; at++)
      if (socks[i].slots[at].busy && now > socks[i].slots[at].sent_ns + LOST_NS) {
        socks[i].slots[at].busy = 0;
        socks[i].free[socks[i].free_count++] = at;
        lost++;
      }
}

static double percentile(double part) {
  uint64_t seen = 0;
  for (int i = 0; i < 64 * 64; i++)
    if (histogram[i] && (seen += histogram[i]) >= received * part) return bucket_value(i) / 1000;
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 6) {
    fprintf(stderr, "load PORT NAMES SECONDS WINDOW SOCKETS [edns] [unique] [case]\n");
    return 2;
  }
  int edns = 0, count = atoi(argv[5]);
  for (int i = 6; i < argc; i++) {
    edns |= !strcmp(argv[i], "edns");
    unique |= !strcmp(argv[i], "unique");
    random_case |= !strcmp(argv[i], "case");
  }
  read_names(argv[2], edns);
  window = atoi(argv[4]) / count;
  if (window < 1) window = 1;
  if (window > WINDOW_MAX) window = WINDOW_MAX;
  while ((1 << slot_bits) < window) slot_bits++;
  Sock *socks = calloc(count, sizeof *socks);
  struct pollfd *polls = calloc(count, sizeof *polls);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int i = 0; i < count; i++) {
    int buffer = 4 << 20;
    socks[i].fd = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(socks[i].fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    setsockopt(socks[i].fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    if (connect(socks[i].fd, (void *)&to, sizeof to)) {
      perror("connect");
      return 1;
    }
    polls[i] = (struct pollfd){socks[i].fd, POLLIN, 0};
    for (int at = 0; at < window; at++) socks[i].free[socks[i].free_count++] = at;
  }
  uint64_t began = now_ns(), ends = began + (uint64_t)(atof(argv[3]) * 1e9), scanned = began;
  for (;;) {
    uint64_t now = now_ns();
    int any = 0, done = now >= ends;
    for (int i = 0; i < count; i++) {
      any |= receive(&socks[i]);
      if (!done) ask(&socks[i]);
    }
    if (now - scanned > 200000000ull) {
      scanned = now;
      give_up_lost(socks, count, now);
    }
    if (done && (!outstanding(socks, count) || now > ends + LOST_NS + 500000000ull)) break;
    if (!any) poll(polls, count, 20);
  }
  printf("qps %.0f sent %lu received %lu right %lu nodata %lu nxdomain %lu servfail %lu other %lu wrong %lu lost %lu "
         "mean_us %.1f p50_us %.1f p99_us %.1f p999_us %.1f\n",
         received / ((ends - began) / 1e9), sent, received, right, nodata, nxdomain, servfail, other, wrong, sent - received,
         received ? sum_ns / 1e3 / received : 0, percentile(0.5), percentile(0.99), percentile(0.999));
  return 0;
}
