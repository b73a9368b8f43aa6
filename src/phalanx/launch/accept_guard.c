/* Refuses connections of strangers to the listening sockets of ranks.
 *
 * Loaded with LD_PRELOAD into the processes of a gang. Frameworks such as gloo, gRPC and Open MPI accept
 * every connection. This library closes a connection before the framework sees it unless
 *   - its other end is a socket of this machine that belongs to the same user, or to root, or
 *   - its other end is on another machine whose address is listed.
 * The kernel tells the owner of a socket (inet_diag), so the other end sends nothing for it.
 *
 * PHALANX_ACCEPT         `gang`: ports that the kernel chose, and PHALANX_ACCEPT_PORTS; `all`: every port;
 *                        otherwise: the library does nothing
 * PHALANX_ACCEPT_PORTS   guarded ports, which may also be shared with a socket of the supervisor
 * PHALANX_ACCEPT_PEERS   addresses of other machines, or `*` for every machine
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <unistd.h>

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
} address;

/* Ports that this process bound by number: services of the script, which are its owner's business. */
static unsigned char bound_by_number[65536 / 8];

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static int port_of(const struct sockaddr *one) {
    if (one->sa_family == AF_INET) return ntohs(((const struct sockaddr_in *)one)->sin_port);
    if (one->sa_family == AF_INET6) return ntohs(((const struct sockaddr_in6 *)one)->sin6_port);
    return -1;
}

/* `gang`, `all`, or NULL where the library is to do nothing. */
static const char *mode_of_guard(void) {
    const char *mode = getenv("PHALANX_ACCEPT");
    if (mode == NULL || (strcmp(mode, "gang") != 0 && strcmp(mode, "all") != 0)) return NULL;
    return mode;
}

static int is_listed_port(int port) {
    const char *text = getenv("PHALANX_ACCEPT_PORTS");
    while (text != NULL && *text != 0) {
        if (strtol(text, NULL, 10) == port) return 1;
        text = strchr(text, ',');
        if (text != NULL) text++;
    }
    return 0;
}

/* Makes the loopback address of "every interface", for a gang of one node. */
static void narrow(address *where) {
    if (where->any.sa_family == AF_INET && where->v4.sin_addr.s_addr == htonl(INADDR_ANY))
        where->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (where->any.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&where->v6.sin6_addr))
        inet_pton(AF_INET6, "::ffff:127.0.0.1", &where->v6.sin6_addr);
}

int bind(int fd, const struct sockaddr *where, socklen_t length) {
    int (*real)(int, const struct sockaddr *, socklen_t) = next("bind");
    int port = where != NULL && length >= sizeof(sa_family_t) ? port_of(where) : -1;
    if (port > 0 && mode_of_guard() != NULL && is_listed_port(port)) {
        /* The supervisor holds the rendezvous port, so that no other user can take it first. */
        int yes = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes);
        const char *peers = getenv("PHALANX_ACCEPT_PEERS");
        if ((peers == NULL || *peers == 0) && length <= sizeof(address)) {
            address near;
            memcpy(&near, where, length);
            narrow(&near);
            if (real(fd, &near.any, length) == 0) {
                bound_by_number[port / 8] |= (unsigned char)(1u << (port % 8));
                return 0;
            }
        }
    }
    int result = real(fd, where, length);
    if (result == 0 && port > 0) bound_by_number[port / 8] |= (unsigned char)(1u << (port % 8));
    return result;
}

/* Makes an IPv4 address of one that is written as an IPv6 address. */
static void unmap(address *one) {
    if (one->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&one->v6.sin6_addr)) return;
    struct sockaddr_in plain;
    memset(&plain, 0, sizeof plain);
    plain.sin_family = AF_INET;
    plain.sin_port = one->v6.sin6_port;
    memcpy(&plain.sin_addr, &one->v6.sin6_addr.s6_addr[12], 4);
    memset(&one->room, 0, sizeof one->room);
    one->v4 = plain;
}

static int is_guarded(int fd) {
    const char *mode = mode_of_guard();
    if (mode == NULL) return 0;
    address own;
    socklen_t length = sizeof own;
    if (getsockname(fd, &own.any, &length) != 0) return 0;
    int port = port_of(&own.any);
    if (port < 0) return 0;
    if (strcmp(mode, "all") == 0 || is_listed_port(port)) return 1;
    return (bound_by_number[port / 8] >> (port % 8) & 1) == 0;
}

/* The owner of the socket at the other end, if it is one of this machine: 1 found, 0 none, -1 unknown. */
static int owner_of(const address *peer, const address *own, uid_t *owner) {
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 body;
    } request;
    memset(&request, 0, sizeof request);
    request.head.nlmsg_len = sizeof request;
    request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    request.head.nlmsg_flags = NLM_F_REQUEST;
    request.body.sdiag_family = (unsigned char)peer->any.sa_family;
    request.body.sdiag_protocol = IPPROTO_TCP;
    request.body.idiag_states = ~0u;
    struct inet_diag_sockid *id = &request.body.id;
    id->idiag_cookie[0] = id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    if (peer->any.sa_family == AF_INET) {
        id->idiag_sport = peer->v4.sin_port;
        id->idiag_dport = own->v4.sin_port;
        memcpy(id->idiag_src, &peer->v4.sin_addr, 4);
        memcpy(id->idiag_dst, &own->v4.sin_addr, 4);
    } else {
        id->idiag_sport = peer->v6.sin6_port;
        id->idiag_dport = own->v6.sin6_port;
        memcpy(id->idiag_src, &peer->v6.sin6_addr, 16);
        memcpy(id->idiag_dst, &own->v6.sin6_addr, 16);
        id->idiag_if = peer->v6.sin6_scope_id;
    }
    int line = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (line < 0) return -1;
    int result = -1;
    struct timeval patience = {2, 0};
    setsockopt(line, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    struct sockaddr_nl kernel;
    memset(&kernel, 0, sizeof kernel);
    kernel.nl_family = AF_NETLINK;
    union {
        struct nlmsghdr head;
        char room[4096];
    } answer;
    ssize_t got = -1;
    if (sendto(line, &request, sizeof request, 0, (struct sockaddr *)&kernel, sizeof kernel) > 0)
        got = recv(line, &answer, sizeof answer, 0);
    if (got >= (ssize_t)sizeof answer.head) {
        if (answer.head.nlmsg_type == NLMSG_ERROR) {
            struct nlmsgerr *error = NLMSG_DATA(&answer.head);
            result = error->error == -ENOENT ? 0 : -1;
        } else if (answer.head.nlmsg_type == SOCK_DIAG_BY_FAMILY) {
            struct inet_diag_msg *found = NLMSG_DATA(&answer.head);
            /* 10: a listener on the same port. Without an inode nothing has the socket open any more. */
            result = found->idiag_state != 10 && found->idiag_inode != 0 &&
                     found->id.idiag_dport == id->idiag_dport;
            *owner = found->idiag_uid;
        }
    }
    close(line);
    return result;
}

/* Whether an address is one of this machine: only those can be bound. */
static int is_local(const address *peer) {
    address probe = *peer;
    socklen_t length = sizeof probe.v6;
    if (probe.any.sa_family == AF_INET) {
        probe.v4.sin_port = 0;
        length = sizeof probe.v4;
    } else {
        probe.v6.sin6_port = 0;
    }
    int (*real)(int, const struct sockaddr *, socklen_t) = next("bind");
    int fd = socket(probe.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 1;
    int local = real(fd, &probe.any, length) == 0 || errno != EADDRNOTAVAIL;
    close(fd);
    return local;
}

static int is_listed_peer(const address *peer) {
    const char *text = getenv("PHALANX_ACCEPT_PEERS");
    while (text != NULL && *text != 0) {
        char one[INET6_ADDRSTRLEN];
        size_t length = strcspn(text, ",");
        if (length < sizeof one) {
            unsigned char number[16];
            memcpy(one, text, length);
            one[length] = 0;
            if (strcmp(one, "*") == 0) return 1;
            if (inet_pton(peer->any.sa_family, one, number) == 1) {
                if (peer->any.sa_family == AF_INET && memcmp(number, &peer->v4.sin_addr, 4) == 0)
                    return 1;
                if (peer->any.sa_family == AF_INET6 && memcmp(number, &peer->v6.sin6_addr, 16) == 0)
                    return 1;
            }
        }
        text += length;
        if (*text == ',') text++;
    }
    return 0;
}

static int is_permitted(int fd) {
    address peer, own;
    socklen_t peer_length = sizeof peer, own_length = sizeof own;
    memset(&peer, 0, sizeof peer);
    memset(&own, 0, sizeof own);
    if (getpeername(fd, &peer.any, &peer_length) != 0) return 0;
    if (getsockname(fd, &own.any, &own_length) != 0) return 0;
    if (peer.any.sa_family != AF_INET && peer.any.sa_family != AF_INET6) return 1;
    unmap(&peer);
    unmap(&own);
    uid_t owner = 0;
    int found = owner_of(&peer, &own, &owner);
    if (found < 0) return 0;
    if (found > 0) return owner == geteuid() || owner == 0;
    return !is_local(&peer) && is_listed_peer(&peer);
}

int accept4(int fd, struct sockaddr *where, socklen_t *length, int flags) {
    int (*real)(int, struct sockaddr *, socklen_t *, int) = next("accept4");
    socklen_t room = length != NULL ? *length : 0;
    for (;;) {
        if (length != NULL) *length = room;
        int one = real(fd, where, length, flags);
        if (one < 0) return one;
        int before = errno;
        int welcome = !is_guarded(fd) || is_permitted(one);
        if (welcome) {
            errno = before;
            return one;
        }
        close(one);
        errno = before;
    }
}

int accept(int fd, struct sockaddr *where, socklen_t *length) {
    return accept4(fd, where, length, 0);
}
