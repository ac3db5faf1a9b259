// The plain yardstick, single thread: copies id and question, answers one A record. Over UDP one recvfrom and one sendto
// a query; over TCP one recv and one send for what a client sent at once.
// echo PORT [tcp]
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

static int answer(uint8_t *packet, int size) {
  static const uint8_t record[16] = {0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 0, 0, 1};
  static const uint8_t counts[8] = {0, 1, 0, 1, 0, 0, 0, 0};
  if (size < 17 || (packet[2] & 0x80)) return 0;
  int at = 12;
  while (at < size && packet[at]) {
    if (packet[at] & 0xc0) return 0;
    at += packet[at] + 1;
  }
  at += 5;
  if (at > size) return 0;
  packet[2] = 0x84 | (packet[2] & 1);
  packet[3] = 0;
  memcpy(packet + 4, counts, 8);
  memcpy(packet + at, record, 16);
  return at + 16;
}

#include "server.h"

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "echo PORT [tcp]\n");
    return 2;
  }
  if (argc > 2) serve_polled(-1, bound(SOCK_STREAM, atoi(argv[1])));
  for (int sock = bound(SOCK_DGRAM, atoi(argv[1]));;) serve_datagram(sock, 0);
}
