// What the small servers of the bench share: a socket on loopback, and DNS over UDP and TCP by poll(2) in one thread.
// Whoever includes this defines answer() first: it writes the reply over the query and gives its length, or 0 for none.
#include <arpa/inet.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MAX 256
#define STREAM_BYTES 65536
#define PACKET_BYTES 4096
#define BUFFER_BYTES (4 << 20)
#define TURN_MAX 64

typedef struct {
  int kept;  // bytes of an unfinished frame
  uint8_t data[STREAM_BYTES];
} Stream;

static int bound(int type, int port) {
  int sock = socket(AF_INET, type, 0), buffer = BUFFER_BYTES, yes = 1;
  if (type == SOCK_DGRAM) {
    setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  } else {
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  }
  struct sockaddr_in self = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(sock, (void *)&self, sizeof self) || (type == SOCK_STREAM && listen(sock, 128))) {
    perror("bind");
    exit(1);
  }
  return sock;
}

// One datagram; what recvfrom said.
static int serve_datagram(int sock, int flags) {
  static uint8_t packet[PACKET_BYTES];
  struct sockaddr_in from;
  socklen_t length = sizeof from;
  int size = recvfrom(sock, packet, sizeof packet - 64, flags, (void *)&from, &length);
  int reply = size > 0 ? answer(packet, size) : 0;
  if (reply) sendto(sock, packet, reply, 0, (void *)&from, length);
  return size;
}

// What one read brought: all whole frames are answered by one write. 0 when the connection has ended.
static int serve_stream(int sock, Stream *stream) {
  static uint8_t out[2 * STREAM_BYTES], packet[PACKET_BYTES];
  int size = recv(sock, stream->data + stream->kept, STREAM_BYTES - stream->kept, 0), at = 0, written = 0;
  if (size <= 0) return 0;
  size += stream->kept;
  while (size - at >= 2) {
    int length = stream->data[at] << 8 | stream->data[at + 1];
    if (length > PACKET_BYTES - 64) return 0;
    if (size - at - 2 < length) break;
    memcpy(packet, stream->data + at + 2, length);
    at += 2 + length;
    int reply = answer(packet, length);
    if (!reply) continue;
    if (written + 2 + reply > (int)sizeof out) return 0;
    out[written] = reply >> 8, out[written + 1] = reply;
    memcpy(out + written + 2, packet, reply);
    written += 2 + reply;
  }
  stream->kept = size - at;
  memmove(stream->data, stream->data + at, stream->kept);
  return send(sock, out, written, MSG_NOSIGNAL) == written;
}

static void serve_polled(int datagrams, int listener) {
  static Stream streams[CONNECTIONS_MAX];
  static struct pollfd polls[2 + CONNECTIONS_MAX];
  int count = 2;
  polls[0] = (struct pollfd){datagrams, POLLIN, 0};
  polls[1] = (struct pollfd){listener, POLLIN, 0};
  for (;;) {
    poll(polls, count, -1);
    for (int turn = 0; polls[0].revents && turn < TURN_MAX && serve_datagram(datagrams, MSG_DONTWAIT) > 0; turn++) {
    }
    for (int i = count - 1; i >= 2; i--) {  // backwards: the last one takes the place of one that has ended
      if (!polls[i].revents || serve_stream(polls[i].fd, &streams[i - 2])) continue;
      close(polls[i].fd);
      count--;
      polls[i] = polls[count];
      streams[i - 2] = streams[count - 2];
    }
    if (polls[1].revents && count < 2 + CONNECTIONS_MAX) {
      streams[count - 2].kept = 0;
      polls[count++] = (struct pollfd){accept(listener, 0, 0), POLLIN, 0};
    }
  }
}
