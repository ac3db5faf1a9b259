/* A program that looks up names through its libc; built with glibc and with musl.
 *
 * lookup KIND,NAME,TIMES,PAUSE_MS...   KIND: host (getaddrinfo), inet, inet6 (one family), srv (res_query)
 * One line of JSON for each look-up: {"got": ["10.0.0.1"], "error": ""}
 */
#define _GNU_SOURCE /* EAI_NODATA */
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static const char *word(int error)
{
    switch (error) {
    case 0: return "";
    case EAI_NONAME: return "no name";
    case EAI_AGAIN: return "try again";
#ifdef EAI_NODATA
    case EAI_NODATA: return "no data";
#endif
    default: return gai_strerror(error);
    }
}

static void host(const char *name, int family)
{
    struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int error = getaddrinfo(name, NULL, &hints, &found);
    const char *comma = "";

    printf("{\"got\": [");
    for (struct addrinfo *one = error ? NULL : found; one; one = one->ai_next, comma = ", ") {
        char text[NI_MAXHOST];
        getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
        printf("%s\"%s\"", comma, text);
    }
    printf("], \"error\": \"%s\"}\n", word(error));
    if (!error)
        freeaddrinfo(found);
}

static void srv(const char *name)
{
    static unsigned char answer[65536];
    ns_msg message;
    const char *comma = "";
    int size = res_query(name, ns_c_in, ns_t_srv, answer, sizeof answer);
    int count = size < 0 || ns_initparse(answer, size, &message) ? 0 : ns_msg_count(message, ns_s_an);

    printf("{\"got\": [");
    for (int at = 0; at < count; at++) {
        ns_rr record;
        char target[NS_MAXDNAME];
        if (ns_parserr(&message, ns_s_an, at, &record))
            break; /* the rest was cut off */
        const unsigned char *data = ns_rr_rdata(record);
        ns_name_uncompress(ns_msg_base(message), ns_msg_end(message), data + 6, target, sizeof target);
        printf("%s\"%d %d %d %s\"", comma, ns_get16(data), ns_get16(data + 2), ns_get16(data + 4), target);
        comma = ", ";
    }
    printf("], \"error\": \"%s\"}\n", size >= 0 ? "" : h_errno == HOST_NOT_FOUND ? "no name" : "no answer");
}

int main(int count, char **words)
{
    for (int at = 1; at < count; at++) {
        const char *kind = strtok(words[at], ","), *name = strtok(NULL, ",");
        int times = atoi(strtok(NULL, ",")), pause_ms = atoi(strtok(NULL, ","));
        for (int turn = 0; turn < times; turn++) {
            if (turn) {
                struct timespec pause = {pause_ms / 1000, pause_ms % 1000 * 1000000L};
                nanosleep(&pause, NULL);
            }
            if (!strcmp(kind, "srv"))
                srv(name);
            else
                host(name, !strcmp(kind, "inet") ? AF_INET : !strcmp(kind, "inet6") ? AF_INET6 : AF_UNSPEC);
            fflush(stdout);
        }
    }
    return 0;
}
