// A load generator for DNS: a closed window over several sockets, one thread; over UDP by sendmmsg and recvmmsg, over TCP
// with connections that stay open and questions one behind the other.
// load PORT NAMES SECONDS WINDOW SOCKETS [tcp] [edns] [cookie] [unique] [case]
//   NAMES     lines "name TYPE [WANTED,WANTED...]": the addresses of A, the ports of SRV that may be in the answer, as many
//             as there must be; without them any answer will do
//   WINDOW    queries outstanding; 1 with 1 socket measures the closed loop
//   edns      an OPT record of 1,232 bytes, also wanted in the reply; `cookie` puts eight random bytes into it as a cookie
//   unique    puts a number before each name, so that no two queries are equal, in this run or the next within the hour
//   case      draws the case of every letter anew
// Every reply is checked: id outstanding, question the same byte for byte, rcode, every answer; counted: right (NOERROR with
// the answer wanted), nodata, nxdomain, servfail, other, wrong (question or answer), stray (an id that nobody waits for).
// Prints one line of words and numbers.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64
#define PACKET 320
#define NAMES_MAX 131072
#define WINDOW_MAX 1024
#define LOST_NS 2000000000ull
#define WANTED_MAX 16
#define STREAM_BYTES 262144

typedef struct {
  int size, end, type, wanted_count;  // end: of the question
  uint32_t wanted[WANTED_MAX];
  uint8_t packet[PACKET];
} Name;

typedef struct {
  uint64_t sent_ns;
  int busy, size;
  Name *name;
  uint8_t packet[PACKET];
} Slot;

typedef struct {
  int fd, free_count, kept;  // kept: bytes of an unfinished frame of TCP
  uint16_t free[WINDOW_MAX], generation[WINDOW_MAX];
  Slot slots[WINDOW_MAX];
  uint8_t *stream;
} Sock;

static Name *names;
static int name_count, next_name, window, slot_bits, tcp, edns, cookie, unique, random_case;
static struct sockaddr_in to;
static uint64_t histogram[64 * 64], sent, received, right, nodata, nxdomain, servfail, other, wrong, stray, sum_ns;
static uint32_t number;
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

static void read_wanted(Name *name, char *words) {
  for (char *word = strtok(words, ","); word && name->wanted_count < WANTED_MAX; word = strtok(0, ","))
    name->wanted[name->wanted_count++] = strchr(word, '.') ? ntohl(inet_addr(word)) : (uint32_t)atoi(word);
}

static void read_name(Name *name, char *text) {
  uint8_t *p = name->packet;
  p[2] = 1, p[5] = 1;  // RD, one question
  int o = 12;
  if (unique) {
    p[o] = 8;
    o += 9;  // filled in for each query
  }
  for (char *label = strtok(text, "."); label; label = strtok(0, ".")) {
    int l = strlen(label);
    p[o++] = l;
    memcpy(p + o, label, l);
    o += l;
  }
  const uint8_t tail[5] = {0, name->type >> 8, name->type, 0, 1};
  memcpy(p + o, tail, 5);
  name->size = name->end = o + 5;
  if (!edns) return;
  const uint8_t opt[23] = {0, 0, 41, 4, 208, 0, 0, 0, 0, 0, cookie ? 12 : 0, 0, 10, 0, 8};
  p[11] = 1;
  memcpy(p + name->size, opt, sizeof opt);
  name->size += cookie ? 23 : 11;
}

static void read_names(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) {
    perror(path);
    exit(1);
  }
  names = calloc(NAMES_MAX, sizeof *names);
  char line[600];
  while (fgets(line, sizeof line, file) && name_count < NAMES_MAX) {
    char text[200], type[40] = "A", wanted[300] = "";
    if (sscanf(line, "%199s %39s %299s", text, type, wanted) < 1) continue;
    Name *name = &names[name_count++];
    name->type = type_number(type);
    read_wanted(name, wanted);
    read_name(name, text);
  }
  fclose(file);
}

static void fill(Slot *slot, unsigned id) {
  Name *name = &names[next_name];
  slot->name = name, slot->size = name->size;
  memcpy(slot->packet, name->packet, name->size);
  slot->packet[0] = id >> 8, slot->packet[1] = id;
  if (unique) {
    char digits[9];
    snprintf(digits, sizeof digits, "%08x", number++);
    memcpy(slot->packet + 13, digits, 8);
  }
  if (random_case)
    for (int at = 12; slot->packet[at]; at += slot->packet[at] + 1)
      for (int i = 1; i <= slot->packet[at]; i++)
        if (isalpha(slot->packet[at + i]) && (draw() & 1)) slot->packet[at + i] ^= 32;
  if (cookie)
    for (int at = name->size - 8; at < name->size; at += 4) {
      uint32_t word = draw();
      memcpy(slot->packet + at, &word, 4);
    }
  if (++next_name == name_count) next_name = 0;
}

// Behind a name, or -1.
static int skip_name(const uint8_t *reply, int size, int at) {
  while (at < size && reply[at] && (reply[at] & 0xc0) != 0xc0) at += reply[at] + 1;
  if (at >= size) return -1;
  return at + (reply[at] ? 2 : 1);
}

// Whether every answer is one of those wanted, no fewer and no more.
static int answers_right(const Name *name, const uint8_t *reply, int size) {
  int answers = reply[6] << 8 | reply[7], at = name->end;
  if (edns && !(reply[10] << 8 | reply[11])) return 0;
  if (!name->wanted_count) return answers > 0;
  if (answers != name->wanted_count) return 0;
  for (int i = 0; i < answers; i++) {
    at = skip_name(reply, size, at);
    if (at < 0 || at + 10 > size) return 0;
    int type = reply[at] << 8 | reply[at + 1], length = reply[at + 8] << 8 | reply[at + 9], found = 0;
    const uint8_t *data = reply + at + 10;
    if (at + 10 + length > size || type != name->type || length < 4) return 0;
    uint32_t value = type == 33 ? (length < 7 ? 0u : (uint32_t)data[4] << 8 | data[5])
                                : (uint32_t)data[0] << 24 | data[1] << 16 | data[2] << 8 | data[3];
    for (int w = 0; w < name->wanted_count; w++) found |= value == name->wanted[w];
    if (!found) return 0;
    at += 10 + length;
  }
  return 1;
}

static void judge(Sock *sock, const uint8_t *reply, int size, uint64_t now) {
  unsigned id = reply[0] << 8 | reply[1], at = id & ((1u << slot_bits) - 1);
  Slot *slot = &sock->slots[at];
  if (size < 12 || at >= (unsigned)window || !slot->busy || ((sock->generation[at] << slot_bits | at) & 0xffff) != id) {
    stray++;
    return;
  }
  uint64_t took = now - slot->sent_ns;
  slot->busy = 0;
  sock->free[sock->free_count++] = at;
  received++, sum_ns += took, histogram[bucket(took)]++;
  int end = slot->name->end, rcode = reply[3] & 15, answers = reply[6] << 8 | reply[7];
  if (size < end || !(reply[2] & 0x80) || memcmp(reply + 12, slot->packet + 12, end - 12)) wrong++;
  else if (rcode == 0 && !answers) nodata++;
  else if (rcode == 0) *(answers_right(slot->name, reply, size) ? &right : &wrong) += 1;
  else *(rcode == 3 && !answers ? &nxdomain : rcode == 2 ? &servfail : &other) += 1;
}

static void connect_to(Sock *sock) {
  int buffer = 4 << 20, yes = 1;
  sock->fd = socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0);
  if (tcp) {
    setsockopt(sock->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  } else {
    setsockopt(sock->fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    setsockopt(sock->fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  }
  if (connect(sock->fd, (void *)&to, sizeof to)) {
    perror("connect");
    exit(1);
  }
}

// A connection has ended: what was outstanding on it is lost.
static void connect_anew(Sock *sock) {
  close(sock->fd);
  sock->kept = sock->free_count = 0;
  for (int at = 0; at < window; at++) {
    sock->slots[at].busy = 0;
    sock->free[sock->free_count++] = at;
  }
  connect_to(sock);
}

static int receive_stream(Sock *sock) {
  int size = recv(sock->fd, sock->stream + sock->kept, STREAM_BYTES - sock->kept, MSG_DONTWAIT), at = 0;
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (size <= 0) {
    connect_anew(sock);
    return 1;
  }
  uint64_t now = now_ns();
  size += sock->kept;
  while (size - at >= 2) {
    int length = sock->stream[at] << 8 | sock->stream[at + 1];
    if (size - at - 2 < length) break;
    judge(sock, sock->stream + at + 2, length, now);
    at += 2 + length;
  }
  sock->kept = size - at;
  memmove(sock->stream, sock->stream + at, sock->kept);
  return 1;
}

static void ask_stream(Sock *sock) {
  static uint8_t out[WINDOW_MAX * (PACKET + 2)];
  int written = 0;
  uint64_t now = now_ns();
  while (sock->free_count) {
    unsigned at = sock->free[--sock->free_count];
    Slot *slot = &sock->slots[at];
    fill(slot, ((++sock->generation[at]) << slot_bits | at) & 0xffff);
    slot->sent_ns = now, slot->busy = 1;
    out[written] = slot->size >> 8, out[written + 1] = slot->size;
    memcpy(out + written + 2, slot->packet, slot->size);
    written += 2 + slot->size;
    sent++;
  }
  if (written && send(sock->fd, out, written, MSG_NOSIGNAL) != written) connect_anew(sock);
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
      }
}

static double percentile(double part) {
  uint64_t seen = 0;
  for (int i = 0; i < 64 * 64; i++)
    if (histogram[i] && (seen += histogram[i]) >= received * part) return bucket_value(i) / 1000;
  return 0;
}

static void read_words(int count, char **words) {
  for (int i = 0; i < count; i++) {
    tcp |= !strcmp(words[i], "tcp");
    edns |= !strcmp(words[i], "edns") || !strcmp(words[i], "cookie");
    cookie |= !strcmp(words[i], "cookie");
    unique |= !strcmp(words[i], "unique");
    random_case |= !strcmp(words[i], "case");
  }
}

int main(int argc, char **argv) {
  if (argc < 6) {
    fprintf(stderr, "load PORT NAMES SECONDS WINDOW SOCKETS [tcp] [edns] [cookie] [unique] [case]\n");
    return 2;
  }
  int count = atoi(argv[5]);
  read_words(argc - 6, argv + 6);
  read_names(argv[2]);
  window = atoi(argv[4]) / count;
  if (window < 1) window = 1;
  if (window > WINDOW_MAX) window = WINDOW_MAX;
  while ((1 << slot_bits) < window) slot_bits++;
  Sock *socks = calloc(count, sizeof *socks);
  struct pollfd *polls = calloc(count, sizeof *polls);
  to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int i = 0; i < count; i++) {
    connect_to(&socks[i]);
    if (tcp) socks[i].stream = malloc(STREAM_BYTES);
    for (int at = 0; at < window; at++) socks[i].free[socks[i].free_count++] = at;
  }
  uint64_t began = now_ns(), ends = began + (uint64_t)(atof(argv[3]) * 1e9), scanned = began;
  number = began / 1000;  // one a microsecond: no run gets there before its time
  seed ^= number ? number : 1;
  for (;;) {
    uint64_t now = now_ns();
    int any = 0, done = now >= ends;
    for (int i = 0; i < count; i++) {
      any |= tcp ? receive_stream(&socks[i]) : receive(&socks[i]);
      if (!done) tcp ? ask_stream(&socks[i]) : ask(&socks[i]);
      polls[i] = (struct pollfd){socks[i].fd, POLLIN, 0};
    }
    if (now - scanned > 200000000ull) {
      scanned = now;
      give_up_lost(socks, count, now);
    }
    if (done && (!outstanding(socks, count) || now > ends + LOST_NS + 500000000ull)) break;
    if (!any) poll(polls, count, 20);
  }
  printf("qps %.0f sent %lu received %lu right %lu nodata %lu nxdomain %lu servfail %lu other %lu wrong %lu stray %lu lost %lu "
         "mean_us %.1f p50_us %.1f p99_us %.1f p999_us %.1f\n",
         received / ((ends - began) / 1e9), sent, received, right, nodata, nxdomain, servfail, other, wrong, stray, sent - received,
         received ? sum_ns / 1e3 / received : 0, percentile(0.5), percentile(0.99), percentile(0.999));
  return 0;
}
