/*
 * Three ranks in one program, on every route, with messages that arrive in any order and twice; and steps that fail: a
 * rank that is lost, time that runs out, a frame that was damaged, a gradient that is not finite, and calls out of
 * order. What a failed step did not use is back in the memories.
 */
#include "ranks.h"
#include <math.h>

static void all_agree(const char *spelling, uint32_t route) {
  size_t contributors, bytes, sent;
  make(spelling, route);
  for (uint64_t step = 0; step < 5; step++) {
    begin(step, 1000);
    run(0, 1000);
    for (int i = 0; i < RANKS; i++) {
      OK(ranks[i].ended);
      EXPECT(ranks[i].is_done && memcmp(ranks[i].mean, ranks[0].mean, sizeof ranks[0].mean) == 0);
      OK(gw_exchange_report(ranks[i].exchange, &contributors, &bytes, &sent));
      EXPECT(contributors == RANKS && bytes > 0 && sent > 0);
    }
  }
  unmake();
}

/* As all_agree, with exchanges that were made by another function. */
static void run_steps(void) {
  size_t contributors;
  for (uint64_t step = 0; step < 3; step++) {
    begin(step, 1000);
    run(0, 1000);
    for (int i = 0; i < RANKS; i++) {
      OK(ranks[i].ended);
      EXPECT(ranks[i].is_done && memcmp(ranks[i].mean, ranks[0].mean, sizeof ranks[0].mean) == 0);
      OK(gw_exchange_report(ranks[i].exchange, &contributors, NULL, NULL));
      EXPECT(contributors == RANKS);
    }
  }
}

/* In several parts, the mean has the same bits as in one. */
static void pipelined(gw_layout *tensors) {
  static float whole[N];
  gw_layout *flat = layout;
  layout = tensors;
  for (size_t parts = 1; parts <= 3; parts += 2) {
    make("topk:density=0.1,unit=tensor", NO_ROUTE);
    for (int i = 0; i < RANKS; i++) {
      OK(gw_exchange_new_pipelined(codec, layout, GW_ROUTE_ALL_GATHER, parts, &ranks[i].exchange));
    }
    if (parts > 1) {
      begin(0, 1000);
      for (int i = 0; i < 40; i++) call(0, 0, 1000);
      EXPECT(posted_count > RANKS - 1);
      for (int i = 0; i < RANKS; i++) gw_exchange_free(ranks[i].exchange), ranks[i].exchange = NULL;
      for (int i = 0; i < RANKS; i++) {
        OK(gw_memory_clear(ranks[i].memory));
        OK(gw_exchange_new_pipelined(codec, layout, GW_ROUTE_ALL_GATHER, parts, &ranks[i].exchange));
      }
    }
    run_steps();
    if (parts == 1) memcpy(whole, ranks[0].mean, sizeof whole);
    EXPECT(memcmp(whole, ranks[0].mean, sizeof whole) == 0);
    unmake();
  }
  layout = flat;
}

/* Rank 1 serves, answers in 8 bits, and goes on without rank 2 once its patience is over; what rank 2 encoded is back in
 * its memory. */
static void served(void) {
  gw_codec *downlink;
  size_t contributors;
  const float *kept;
  uint8_t tag[GW_TAG_BYTES];
  uint32_t from, count;
  OK(gw_codec_new("qsgd:bits=8", &downlink));
  make("topk:density=0.1", NO_ROUTE);
  for (int i = 0; i < RANKS; i++) {
    OK(gw_exchange_new_server(codec, layout, 1, downlink, &ranks[i].exchange));
  }
  run_steps();
  for (int i = 0; i < RANKS; i++) {
    OK(gw_exchange_set_quorum(ranks[i].exchange, 2));
    OK(gw_exchange_set_patience(ranks[i].exchange, 500));
    OK(gw_memory_clear(ranks[i].memory));
  }
  begin(3, 1000);
  for (int i = 0; i < 40; i++) call(0, 0, 1000), call(1, 0, 1000);
  /* The server waits for both, and says so. */
  OK(gw_exchange_wanted(ranks[1].exchange, 0, &from, tag, &count));
  EXPECT((from == 0 || from == 2) && tag[4] == 3 && count >= 1);
  RESULT(gw_exchange_wanted(ranks[1].exchange, 99, &from, tag, &count), GW_ERROR_OUT_OF_RANGE);
  for (int turn = 0; turn < 40; turn++) {
    for (size_t at = 0; at < posted_count; at++) {
      struct message *message = &posted[at];
      gw_exchange_receive(ranks[message->to].exchange, message->from, message->tag, message->bytes, message->count);
    }
    posted_count = 0;
    call(0, turn < 20 ? 0 : 600, 1000), call(1, turn < 20 ? 0 : 600, 1000);
    if (turn == 19) EXPECT(!ranks[0].is_done && !ranks[1].is_done);
  }
  OK(ranks[0].ended);
  OK(ranks[1].ended);
  EXPECT(ranks[0].is_done && ranks[1].is_done);
  EXPECT(memcmp(ranks[0].mean, ranks[1].mean, sizeof ranks[0].mean) == 0);
  OK(gw_exchange_report(ranks[1].exchange, &contributors, NULL, NULL));
  EXPECT(contributors == 2);
  OK(gw_memory_residual(ranks[0].memory, &kept, NULL));
  EXPECT(memcmp(kept, ranks[0].gradient, sizeof ranks[0].gradient) != 0);
  unmake();
  gw_codec_free(downlink);
}

/* A warm-up sends more in the first epochs. */
static void epochs(void) {
  size_t sent[2];
  make("topk:density=0.05,warmup=3", GW_ROUTE_ALL_GATHER);
  for (uint64_t epoch = 0; epoch < 2; epoch++) {
    for (int i = 0; i < RANKS; i++) OK(gw_exchange_set_epoch(ranks[i].exchange, 3 * epoch));
    begin(epoch, 1000);
    run(0, 1000);
    OK(gw_exchange_report(ranks[0].exchange, NULL, NULL, &sent[epoch]));
  }
  EXPECT(sent[0] > 2 * sent[1] && sent[1] == 3);
  unmake();
}

/* The residuals of the first ranks are residual + gradient, bit for bit: nothing was lost. */
static void keeps_everything(int count) {
  for (int i = 0; i < count; i++) {
    const float *kept;
    OK(gw_memory_residual(ranks[i].memory, &kept, NULL));
    for (int j = 0; j < N; j++) EXPECT(kept[j] == ranks[i].gradient[j]);
  }
}

static void failures(void) {
  char text[200];
  uint64_t deadline;
  /* Time runs out, since rank 2 never sends. */
  make("topk:density=0.1", GW_ROUTE_ALL_GATHER);
  begin(0, 1000);
  for (int i = 0; i < 40; i++) call(0, 0, 1000), call(1, 0, 1000);
  OK(gw_exchange_deadline(ranks[0].exchange, &deadline));
  EXPECT(deadline == 1000 && !ranks[0].is_done);
  posted_count = 0;
  for (int i = 0; i < 40; i++) call(0, 1000, 1000);
  RESULT(ranks[0].ended, GW_EXCHANGE_TIMEOUT);
  OK(gw_exchange_error_text(ranks[0].exchange, text, sizeof text, NULL));
  EXPECT(strstr(text, "rank 1") != NULL);
  unmake();

  /* Rank 2 is lost before it sent. */
  make("topk:density=0.1", GW_ROUTE_ALL_GATHER);
  begin(0, 1000);
  for (int i = 0; i < 40; i++) call(0, 0, 1000), call(1, 0, 1000);
  OK(gw_exchange_peer_lost(ranks[0].exchange, 2));
  OK(gw_exchange_peer_lost(ranks[1].exchange, 2));
  ranks[2].is_done = 1;
  run(0, 1000);
  RESULT(ranks[0].ended, GW_EXCHANGE_DISCONNECTED);
  RESULT(ranks[1].ended, GW_EXCHANGE_DISCONNECTED);
  keeps_everything(2);
  /* And its own network fails. */
  OK(gw_exchange_network_failed(ranks[2].exchange));
  ranks[2].is_done = 0;
  for (int i = 0; i < 40; i++) call(2, 0, 1000);
  RESULT(ranks[2].ended, GW_EXCHANGE_TRANSPORT);
  keeps_everything(3);
  unmake();

  /* A bit of a frame is turned on its way: nobody takes it, and the memories hold everything. */
  make("topk:density=0.1", GW_ROUTE_ALL_GATHER);
  begin(0, 1000);
  for (int i = 0; i < 40; i++) call(0, 0, 1000), call(1, 0, 1000), call(2, 0, 1000);
  EXPECT(posted_count == RANKS * (RANKS - 1));
  for (size_t i = 0; i < posted_count; i++) posted[i].bytes[posted[i].count - 2] ^= 1;
  run(0, 1000);
  for (int i = 0; i < RANKS; i++) RESULT(ranks[i].ended, GW_DECODE_CHECKSUM_MISMATCH);
  keeps_everything(RANKS);
  unmake();

  /* The last byte of a message is its version: ranks of two versions refuse each other. */
  make("topk:density=0.1", GW_ROUTE_ALL_GATHER);
  begin(0, 1000);
  for (int i = 0; i < 40; i++) call(0, 0, 1000), call(1, 0, 1000), call(2, 0, 1000);
  for (size_t i = 0; i < posted_count; i++) posted[i].bytes[posted[i].count - 1]++;
  run(0, 1000);
  for (int i = 0; i < RANKS; i++) RESULT(ranks[i].ended, GW_EXCHANGE_OTHER_VERSION);
  keeps_everything(RANKS);
  unmake();

  /* A gradient that is not finite makes the step void at all. */
  make("topk:density=0.1", GW_ROUTE_ALL_GATHER);
  ranks[1].gradient[3] = NAN;
  begin(0, 1000);
  run(0, 1000);
  RESULT(ranks[1].ended, GW_ENCODE_NON_FINITE_INPUT);
  RESULT(ranks[0].ended, GW_EXCHANGE_VOID);
  RESULT(ranks[2].ended, GW_EXCHANGE_VOID);
  OK(gw_exchange_error_text(ranks[0].exchange, text, sizeof text, NULL));
  EXPECT(strstr(text, "rank 1") != NULL && strstr(text, "coordinate 3") != NULL);
  unmake();
}

static void wrong_calls(void) {
  const uint32_t members[2] = {0, 1};
  uint32_t progress, to;
  uint64_t number;
  size_t count;
  uint8_t tag[GW_TAG_BYTES] = {0}, bytes[1] = {0};
  const uint8_t *at;
  gw_exchange *exchange, *other;
  gw_memory *memory;
  gw_layout *longer;
  float values[N] = {0}, mean[N];
  char text[8];
  OK(gw_codec_new("topk", &codec));
  OK(gw_layout_new_flat(N + 1, &longer));
  RESULT(gw_exchange_new(codec, layout, GW_ROUTE_RING, &exchange), GW_EXCHANGE_NOT_LINEAR);
  RESULT(gw_exchange_new(codec, layout, 7, &exchange), GW_ERROR_OUT_OF_RANGE);
  RESULT(gw_exchange_new_pipelined(codec, layout, 1, 0, &exchange), GW_ERROR_OUT_OF_RANGE);
  RESULT(gw_exchange_new_pipelined(codec, layout, GW_ROUTE_SERVER, 2, &exchange), GW_EXCHANGE_ONE_MESSAGE);
  RESULT(gw_exchange_new_pipelined(NULL, layout, 1, 2, &exchange), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_new_server(codec, NULL, 0, NULL, &exchange), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_new_server(codec, layout, 0, (gw_codec *)layout, &exchange), GW_ERROR_NOT_AN_OBJECT);
  RESULT(gw_exchange_new(NULL, layout, 1, &exchange), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_new(codec, NULL, 1, &exchange), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_new(codec, layout, 1, NULL), GW_ERROR_NULL_POINTER);
  OK(gw_exchange_new(codec, layout, GW_ROUTE_BEST, &exchange));
  OK(gw_memory_new(codec, longer, &memory));
  RESULT(gw_exchange_begin(exchange, 0, members, 2, 0, 1, 1, 0, memory, 0, 9), GW_ERROR_WRONG_LAYOUT);
  gw_memory_free(memory);
  OK(gw_memory_new(codec, layout, &memory));
  RESULT(gw_exchange_encode(exchange, values, N, 0, &progress), GW_EXCHANGE_NOT_STARTED);
  RESULT(gw_exchange_complete(exchange, mean, N, 0, 9, &progress), GW_EXCHANGE_NOT_STARTED);
  RESULT(gw_exchange_report(exchange, NULL, NULL, NULL), GW_EXCHANGE_NOT_STARTED);
  RESULT(gw_exchange_begin(exchange, 2, members, 2, 0, 1, 1, 0, memory, 0, 9), GW_ERROR_OUT_OF_RANGE);
  RESULT(gw_exchange_begin(exchange, GW_ALL_RANKS, members, 2, 0, 1, 1, 0, memory, 0, 9), GW_ERROR_OUT_OF_RANGE);
  RESULT(gw_exchange_begin(exchange, 0, NULL, 2, 0, 1, 1, 0, memory, 0, 9), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_begin(exchange, 0, members, 2, 0, 1, 1, 0, NULL, 0, 9), GW_ENCODE_MEMORY_INCOMPLETE);
  OK(gw_exchange_outgoing(exchange, &number, &to, tag, &at, &count));
  EXPECT(at == NULL && count == 0);
  OK(gw_exchange_begin(exchange, 0, members, 2, 0, 1, 1, 7, memory, 0, 9));
  RESULT(gw_exchange_begin(exchange, 0, members, 2, 0, 1, 1, 8, memory, 0, 9), GW_EXCHANGE_BUSY);
  RESULT(gw_exchange_set_density(exchange, 0.5), GW_EXCHANGE_BUSY);
  RESULT(gw_exchange_set_density(exchange, 2), GW_ERROR_OUT_OF_RANGE);
  RESULT(gw_exchange_complete(exchange, mean, N, 0, 9, &progress), GW_EXCHANGE_NOT_STARTED);
  RESULT(gw_exchange_encode(exchange, values, N - 1, 0, &progress), GW_ERROR_WRONG_LENGTH);
  RESULT(gw_exchange_encode(exchange, NULL, N, 0, &progress), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_encode(exchange, values, N, 0, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_receive(exchange, 5, tag, bytes, 1), GW_EXCHANGE_STRANGER);
  RESULT(gw_exchange_receive(exchange, 0, tag, bytes, 1), GW_EXCHANGE_STRANGER);
  RESULT(gw_exchange_receive(exchange, 1, tag, bytes, 1), GW_EXCHANGE_STALE);
  tag[4] = 7;
  RESULT(gw_exchange_receive(exchange, 1, NULL, bytes, 1), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_receive(exchange, 1, tag, NULL, 1), GW_ERROR_NULL_POINTER);
  OK(gw_exchange_receive(exchange, 1, tag, bytes, 1));
  RESULT(gw_exchange_receive(exchange, 1, tag, bytes, 1), GW_EXCHANGE_DUPLICATE);
  tag[0] = 1;
  RESULT(gw_exchange_receive(exchange, 1, tag, bytes, 1), GW_EXCHANGE_OTHER_EPOCH);
  /* Numbers of messages that are not queued are of no account. */
  OK(gw_exchange_sent(exchange, 99));
  OK(gw_exchange_no_room(exchange, 99, 0));
  OK(gw_exchange_retry(exchange));
  OK(gw_exchange_not_sent(exchange, 99, 1));
  for (int i = 0; i < 9; i++) gw_exchange_encode(exchange, values, N, 0, &progress);
  OK(gw_exchange_outgoing(exchange, &number, &to, tag, &at, &count));
  OK(gw_exchange_not_sent(exchange, number, to));
  gw_result result = GW_OK;
  for (int i = 0; i < 9 && result == GW_OK; i++) result = gw_exchange_complete(exchange, mean, N, 0, 9, &progress);
  EXPECT(result != GW_OK);
  RESULT(gw_exchange_complete(exchange, mean, N, 0, 9, &progress), GW_EXCHANGE_NOT_STARTED);
  /* Every pointer, and an object of another kind. */
  RESULT(gw_exchange_begin(NULL, 0, members, 2, 0, 1, 1, 0, memory, 0, 9), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_encode(NULL, values, N, 0, &progress), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_complete(NULL, mean, N, 0, 9, &progress), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_complete(exchange, NULL, N, 0, 9, &progress), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_complete(exchange, mean, N, 0, 9, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_outgoing(NULL, &number, &to, tag, &at, &count), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_outgoing(exchange, &number, &to, tag, NULL, &count), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_outgoing(exchange, &number, &to, tag, &at, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_outgoing(exchange, &number, &to, NULL, &at, &count), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_sent(NULL, 0), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_no_room(NULL, 0, 0), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_retry(NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_not_sent(NULL, 0, 0), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_receive(NULL, 1, tag, bytes, 1), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_deadline(NULL, &number), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_deadline(exchange, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_peer_lost(NULL, 1), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_network_failed(NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_fail(NULL, "text"), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_not_here(NULL, 1), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_wanted(NULL, 0, &to, tag, &progress), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_set_epoch(NULL, 0), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_set_quorum(exchange, 1), GW_EXCHANGE_NO_DOWNLINK);
  RESULT(gw_exchange_set_patience(exchange, 1), GW_EXCHANGE_NO_DOWNLINK);
  RESULT(gw_exchange_report(NULL, NULL, NULL, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_error_text(NULL, text, sizeof text, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_set_density(NULL, 0.5), GW_ERROR_NULL_POINTER);
  other = (gw_exchange *)codec;
  RESULT(gw_exchange_retry(other), GW_ERROR_NOT_AN_OBJECT);
  RESULT(gw_exchange_free(other), GW_ERROR_NOT_AN_OBJECT);
  OK(gw_exchange_free(NULL));
  OK(gw_exchange_free(exchange));
  gw_memory_free(memory), gw_layout_free(longer), gw_codec_free(codec);
}

int main(void) {
  OK(gw_layout_new_flat(N, &layout));
  all_agree("topk:density=0.1", GW_ROUTE_ALL_GATHER);
  all_agree("qsgd:bits=4", GW_ROUTE_BEST);
  all_agree("topk:density=0.1,values=bf16", GW_ROUTE_SPARSE);
  all_agree("none", GW_ROUTE_RING);
  all_agree("maxnorm:bits=8", GW_ROUTE_TREE);
  all_agree("none", GW_ROUTE_OWNERS);
  all_agree("qsgd:bits=4", GW_ROUTE_SERVER);
  all_agree("powersgd:rank=1", GW_ROUTE_BEST);
  const size_t one[3] = {1, 1, 1}, thirds[3] = {20, 20, 20};
  gw_layout *tensors;
  OK(gw_layout_new(3, NULL, one, thirds, 3, &tensors));
  pipelined(tensors);
  served();
  epochs();
  failures();
  wrong_calls();
  gw_layout_free(tensors);
  gw_layout_free(layout);
  return 0;
}
