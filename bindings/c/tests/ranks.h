/* Three ranks in one program: their exchanges, and messages that arrive in any order and twice. */
#ifndef RANKS_H
#define RANKS_H

#include <gradwire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition) expect(condition, #condition, __LINE__)
#define RESULT(call, expected) result_is(call, expected, #call, __LINE__)
#define OK(call) RESULT(call, GW_OK)

static inline void expect(int holds, const char *what, int line) {
  if (!holds) {
    printf("line %d does not hold: %s\n", line, what);
    exit(1);
  }
}

static inline void result_is(gw_result result, gw_result expected, const char *what, int line) {
  if (result != expected) {
    printf("line %d: %s is %s instead of %s\n", line, what, gw_result_name(result), gw_result_name(expected));
    exit(1);
  }
}

enum { N = 60, RANKS = 3, ROOM = 64, LONGEST = GW_FRAME_BOUND(N), NO_ROUTE = 99 };

struct message {
  uint32_t from, to;
  uint8_t tag[GW_TAG_BYTES];
  uint8_t bytes[LONGEST];
  size_t count;
};

struct rank {
  gw_exchange *exchange;
  gw_memory *memory;
  float gradient[N], mean[N];
  gw_result ended;
  int is_encoded, is_done;
};

static struct message posted[ROOM];
static size_t posted_count;
static struct rank ranks[RANKS];
static gw_codec *codec;
static gw_layout *layout;
static uint64_t seed = 1;

static inline uint32_t below(uint32_t bound) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(seed >> 33) % bound;
}

static inline void make(const char *spelling, uint32_t route) {
  uint32_t can;
  OK(gw_codec_new(spelling, &codec));
  OK(gw_codec_capabilities(codec, &can));
  for (int i = 0; i < RANKS; i++) {
    struct rank *rank = &ranks[i];
    memset(rank, 0, sizeof *rank);
    if (route != NO_ROUTE) OK(gw_exchange_new(codec, layout, route, &rank->exchange));
    if (can & GW_CAN_KEEP) OK(gw_memory_new(codec, layout, &rank->memory));
    for (int j = 0; j < N; j++) rank->gradient[j] = (float)((j * 37 + i * 11) % 61 - 30) / 8;
  }
}

static inline void unmake(void) {
  for (int i = 0; i < RANKS; i++) gw_exchange_free(ranks[i].exchange), gw_memory_free(ranks[i].memory);
  gw_codec_free(codec);
}

static inline void begin(uint64_t step, uint64_t by) {
  const uint32_t members[RANKS] = {2, 0, 1};
  posted_count = 0;
  for (uint32_t i = 0; i < RANKS; i++) {
    ranks[i].is_encoded = ranks[i].is_done = 0;
    OK(gw_exchange_begin(ranks[i].exchange, i, members, RANKS, 0, 1, 5, step, ranks[i].memory, 0, by));
  }
}

static inline void post(uint32_t from) {
  for (;;) {
    uint64_t number;
    const uint8_t *bytes;
    struct message *message = &posted[posted_count];
    EXPECT(posted_count < ROOM);
    OK(gw_exchange_outgoing(ranks[from].exchange, &number, &message->to, message->tag, &bytes, &message->count));
    if (!bytes) return;
    EXPECT(message->count <= LONGEST);
    memcpy(message->bytes, bytes, message->count);
    message->from = from;
    posted_count++;
    OK(gw_exchange_sent(ranks[from].exchange, number));
  }
}

/* One call of one rank. */
static inline void call(uint32_t i, uint64_t now, uint64_t by) {
  struct rank *rank = &ranks[i];
  uint32_t progress;
  if (rank->is_done) return;
  if (!rank->is_encoded) {
    rank->ended = gw_exchange_encode(rank->exchange, rank->gradient, N, now, &progress);
    rank->is_encoded = progress == GW_DONE;
    progress = GW_WORKED;
  } else {
    rank->ended = gw_exchange_complete(rank->exchange, rank->mean, N, now, by, &progress);
  }
  rank->is_done = progress == GW_DONE || rank->ended != GW_OK;
  post(i);
}

/* Calls ranks in any order, and delivers in any order, some messages twice, until nobody gets further. */
static inline void run(uint64_t now, uint64_t by) {
  for (int idle = 0; idle < 200; idle++) {
    call(below(RANKS), now, by);
    if (posted_count > 0) {
      uint32_t at = below((uint32_t)posted_count);
      struct message *message = &posted[at];
      gw_exchange *to = ranks[message->to].exchange;
      gw_result taken = gw_exchange_receive(to, message->from, message->tag, message->bytes, message->count);
      EXPECT(taken == GW_OK || taken == GW_EXCHANGE_DUPLICATE || taken == GW_EXCHANGE_STALE);
      if (taken != GW_OK || below(4) > 0) *message = posted[--posted_count];
      idle = 0;
    }
  }
}

#endif
