// A resolver to forward to, UDP and TCP, single thread, at once: every name has the address 192.0.2.1, other types have
// nothing, and a name with the label "silent" is never answered.
// upstream PORT TTL_S
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

static uint32_t ttl_s;

static int answer(uint8_t *packet, int size) {
  static const uint8_t opt[11] = {0, 0, 41, 4, 208};
  if (size < 17 || (packet[2] & 0x80)) return 0;
  int at = 12;
  while (at < size && packet[at]) {
    if (packet[at] & 0xc0) return 0;
    if (packet[at] == 6 && at + 7 < size && !memcmp(packet + at + 1, "silent", 6)) return 0;
    at += packet[at] + 1;
  }
  at += 5;
  if (at > size) return 0;
  int is_a = packet[at - 4] == 0 && packet[at - 3] == 1, has_opt = packet[11] && at + 3 <= size && packet[at + 2] == 41;
  packet[2] = 0x80 | (packet[2] & 1), packet[3] = 0x80;
  const uint8_t counts[8] = {0, 1, 0, is_a, 0, 0, 0, has_opt};
  memcpy(packet + 4, counts, 8);
  if (is_a) {
    const uint8_t record[16] = {0xc0, 0x0c,        0, 1, 0, 1, ttl_s >> 24, ttl_s >> 16, ttl_s >> 8,
                                ttl_s, 0, 4, 192, 0, 2, 1};
    memcpy(packet + at, record, 16);
    at += 16;
  }
  if (has_opt) {
    memcpy(packet + at, opt, 11);
    at += 11;
  }
  return at;
}

#include "server.h"

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "upstream PORT TTL_S\n");
    return 2;
  }
  ttl_s = atoi(argv[2]);
  serve_polled(bound(SOCK_DGRAM, atoi(argv[1])), bound(SOCK_STREAM, atoi(argv[1])));
}
