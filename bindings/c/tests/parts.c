/*
 * Steps whose parts are added one by one: they have the bits of a step in one; the mean of a part is there before the
 * next is added, with what the others say; what a rank lacks counts as zero; and steps that fail.
 */
#include "ranks.h"
#include <math.h>

enum { UNITS = 3, UNIT = N / UNITS };

static const char why[] = "no such column";

static void begin_in_parts(uint64_t step, uint32_t fail_stop) {
  const uint32_t members[RANKS] = {1, 2, 0};
  posted_count = 0;
  for (uint32_t i = 0; i < RANKS; i++) {
    gw_exchange *exchange = ranks[i].exchange;
    ranks[i].is_encoded = 1, ranks[i].is_done = 0;
    OK(gw_exchange_begin_in_parts(exchange, i, members, RANKS, 0, fail_stop, 5, step, ranks[i].memory, 0, 1000));
  }
}

/* A part at one rank, which says its own name. */
static void add_at(uint32_t i, const uint32_t *units, size_t unit_count, const uint32_t *lacks, size_t lack_count) {
  const uint8_t says[2] = {'r', (uint8_t)('0' + i)};
  size_t part = 99;
  OK(gw_exchange_add(ranks[i].exchange, units, unit_count, lacks, lack_count, says, sizeof says, ranks[i].gradient, N,
                     0, &part));
  EXPECT(part < UNITS);
  post(i);
}

static void add(const uint32_t *units, size_t unit_count) {
  for (uint32_t i = 0; i < RANKS; i++) add_at(i, units, unit_count, NULL, 0);
}

/* Works on the parts that were added, in any order of ranks and messages, until nobody gets further. */
static void settle(void) {
  for (int idle = 0; idle < 100; idle++) {
    uint32_t i = below(RANKS), progress;
    OK(gw_exchange_advance(ranks[i].exchange, ranks[i].mean, N, 0, &progress));
    post(i);
    if (posted_count > 0) {
      struct message *message = &posted[below((uint32_t)posted_count)];
      gw_exchange *to = ranks[message->to].exchange;
      OK(gw_exchange_receive(to, message->from, message->tag, message->bytes, message->count));
      *message = posted[--posted_count];
      idle = 0;
    }
  }
}

static uint32_t state_of(uint32_t rank, size_t part) {
  uint32_t state = 99;
  OK(gw_exchange_part(ranks[rank].exchange, part, &state));
  return state;
}

static void all_ended(gw_result expected) {
  for (int i = 0; i < RANKS; i++) {
    EXPECT(ranks[i].is_done);
    RESULT(ranks[i].ended, expected);
  }
}

static void bits_are_those_of_a_step_in_one(const char *spelling, uint32_t route) {
  static float whole[UNITS][N];
  const uint32_t last = 2, first_two[2] = {0, 1};
  make(spelling, route);
  for (uint64_t step = 0; step < UNITS; step++) {
    begin(step, 1000);
    run(0, 1000);
    all_ended(GW_OK);
    memcpy(whole[step], ranks[0].mean, sizeof whole[step]);
  }
  unmake();
  make(spelling, route);
  for (uint64_t step = 0; step < UNITS; step++) {
    begin_in_parts(step, step & 1);
    add(&last, 1);
    if (step == 1) settle();
    add(first_two, 2);
    run(0, 1000);
    all_ended(GW_OK);
    for (int i = 0; i < RANKS; i++) EXPECT(memcmp(ranks[i].mean, whole[step], sizeof whole[step]) == 0);
  }
  unmake();
}

static void a_part_is_there_before_the_next(uint32_t route, const char *spelling) {
  const uint32_t middle = 1, others[2] = {0, 2};
  float early[UNIT];
  const uint8_t *said;
  size_t count;
  uint32_t state;
  make(spelling, route);
  begin_in_parts(0, 1);
  add(&middle, 1);
  RESULT(gw_exchange_said(ranks[0].exchange, 0, 1, &said, &count), GW_ERROR_OUT_OF_RANGE);
  EXPECT(state_of(0, 0) == GW_PART_TRAVELLING);
  settle();
  for (uint32_t i = 0; i < RANKS; i++) {
    EXPECT(state_of(i, 0) == GW_PART_COMPLETE);
    RESULT(gw_exchange_part(ranks[i].exchange, 1, &state), GW_ERROR_OUT_OF_RANGE);
    for (uint32_t other = 0; other < RANKS; other++) {
      OK(gw_exchange_said(ranks[i].exchange, 0, other, &said, &count));
      EXPECT(count == 2 && said[0] == 'r' && said[1] == '0' + other);
    }
    RESULT(gw_exchange_said(ranks[i].exchange, 0, RANKS, &said, &count), GW_ERROR_OUT_OF_RANGE);
  }
  memcpy(early, ranks[0].mean + UNIT, sizeof early);
  float largest = 0;
  for (int i = 0; i < UNIT; i++) largest = fmaxf(largest, fabsf(early[i]));
  EXPECT(largest > 0);
  add(others, 2);
  run(0, 1000);
  all_ended(GW_OK);
  EXPECT(memcmp(early, ranks[2].mean + UNIT, sizeof early) == 0);
  unmake();
}

/* What is lacking is not read, and counts as zero. */
static void a_unit_that_a_rank_lacks(void) {
  const uint32_t all[UNITS] = {0, 1, 2}, middle = 1;
  make("topk:density=1,unit=tensor", GW_ROUTE_ALL_GATHER);
  for (int j = 0; j < UNIT; j++) ranks[2].gradient[UNIT + j] = NAN;
  begin_in_parts(0, 1);
  for (uint32_t i = 0; i < RANKS; i++) add_at(i, all, UNITS, &middle, i == 2);
  run(0, 1000);
  all_ended(GW_OK);
  for (int j = 0; j < N; j++) {
    float sum = ranks[0].gradient[j] + ranks[1].gradient[j];
    if (j / UNIT != 1) sum += ranks[2].gradient[j];
    EXPECT(ranks[1].mean[j] == sum / 3);
  }
  unmake();
}

/* Rank 1 fails in code of its own after a part, or before it encoded anything. */
static void a_rank_that_fails_tells_all_others(uint32_t route, const char *spelling) {
  const uint32_t middle = 1;
  char text[200];
  for (int in_parts = 0; in_parts < 2; in_parts++) {
    make(spelling, route);
    if (in_parts) {
      begin_in_parts(7, 1);
      add(&middle, 1);
      settle();
    } else {
      begin(7, 1000);
      ranks[1].is_encoded = 1;
    }
    OK(gw_exchange_fail(ranks[1].exchange, why));
    run(0, 1000);
    all_ended(GW_EXCHANGE_FAILED);
    for (int i = 0; i < RANKS; i++) {
      OK(gw_exchange_error_text(ranks[i].exchange, text, sizeof text, NULL));
      EXPECT(strstr(text, "rank 1") != NULL && strstr(text, why) != NULL);
    }
    /* The next step goes on. */
    begin(8, 1000);
    run(0, 1000);
    all_ended(GW_OK);
    unmake();
  }
}

static void a_gradient_that_is_refused(void) {
  const uint32_t units[UNITS] = {0, 1, 2};
  make("topk:density=0.1,unit=tensor", GW_ROUTE_ALL_GATHER);
  ranks[1].gradient[UNIT] = INFINITY;
  begin_in_parts(0, 1);
  for (int i = 0; i < UNITS; i++) {
    add(units + i, 1);
    settle();
  }
  for (uint32_t i = 0; i < RANKS; i++) {
    EXPECT(state_of(i, 0) == GW_PART_COMPLETE && state_of(i, 1) == GW_PART_VOID && state_of(i, 2) == GW_PART_VOID);
    EXPECT(isnan(ranks[i].mean[UNIT]));
  }
  run(0, 1000);
  RESULT(ranks[0].ended, GW_EXCHANGE_VOID);
  RESULT(ranks[1].ended, GW_ENCODE_NON_FINITE_INPUT);
  RESULT(ranks[2].ended, GW_EXCHANGE_VOID);
  unmake();
}

static void wrong_calls(void) {
  static uint8_t long_text[GW_MOST_SAID + 1];
  const uint32_t members[1] = {0}, units[2] = {0, 1}, falling[2] = {1, 0}, beyond = UNITS, third = 2;
  uint32_t progress, state;
  size_t count, start;
  const uint8_t *said;
  char text[80];
  make("topk:density=0.1,unit=tensor", GW_ROUTE_SERVER);
  RESULT(gw_exchange_begin_in_parts(ranks[0].exchange, 0, members, 1, 0, 1, 5, 0, ranks[0].memory, 0, 9),
         GW_EXCHANGE_NO_PARTS);
  unmake();
  make("topk:density=0.1,unit=tensor", GW_ROUTE_ALL_GATHER);
  gw_exchange *exchange = ranks[0].exchange;
  const float *gradient = ranks[0].gradient, *residual;
  float *mean = ranks[0].mean;
  OK(gw_exchange_units(exchange, &count));
  EXPECT(count == UNITS);
  OK(gw_exchange_unit(exchange, 2, &start, &count));
  EXPECT(start == 2 * UNIT && count == UNIT);
  RESULT(gw_exchange_unit(exchange, UNITS, NULL, NULL), GW_ERROR_OUT_OF_RANGE);
  RESULT(gw_exchange_add(exchange, units, 1, NULL, 0, NULL, 0, gradient, N, 0, NULL), GW_EXCHANGE_NOT_STARTED);
  RESULT(gw_exchange_advance(exchange, mean, N, 0, &progress), GW_EXCHANGE_NOT_STARTED);
  RESULT(gw_exchange_part(exchange, 0, &state), GW_ERROR_OUT_OF_RANGE);
  OK(gw_exchange_fail(exchange, "nothing to fail"));
  RESULT(gw_exchange_begin_in_parts(exchange, 0, members, 1, 0, 1, 5, 0, NULL, 0, 9), GW_ENCODE_MEMORY_INCOMPLETE);
  RESULT(gw_exchange_begin_in_parts(exchange, 1, members, 1, 0, 1, 5, 0, ranks[0].memory, 0, 9), GW_ERROR_OUT_OF_RANGE);
  OK(gw_exchange_begin(exchange, 0, members, 1, 0, 1, 5, 0, ranks[0].memory, 0, 9));
  RESULT(gw_exchange_add(exchange, units, 1, NULL, 0, NULL, 0, gradient, N, 0, NULL), GW_EXCHANGE_NOT_STARTED);
  OK(gw_exchange_fail(exchange, why));
  RESULT(gw_exchange_complete(exchange, mean, N, 0, 9, &progress), GW_EXCHANGE_FAILED);
  OK(gw_exchange_begin_in_parts(exchange, 0, members, 1, 0, 1, 5, 1, ranks[0].memory, 0, 9));
  RESULT(gw_exchange_begin(exchange, 0, members, 1, 0, 1, 5, 2, ranks[0].memory, 0, 9), GW_EXCHANGE_BUSY);
  RESULT(gw_exchange_encode(exchange, NULL, N, 0, &progress), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_add(exchange, NULL, 0, NULL, 0, NULL, 0, gradient, N, 0, NULL), GW_EXCHANGE_BAD_PART);
  RESULT(gw_exchange_add(exchange, falling, 2, NULL, 0, NULL, 0, gradient, N, 0, NULL), GW_EXCHANGE_BAD_PART);
  RESULT(gw_exchange_add(exchange, &beyond, 1, NULL, 0, NULL, 0, gradient, N, 0, NULL), GW_EXCHANGE_BAD_PART);
  RESULT(gw_exchange_add(exchange, units, 2, &third, 1, NULL, 0, gradient, N, 0, NULL), GW_EXCHANGE_BAD_PART);
  OK(gw_exchange_error_text(exchange, text, sizeof text, NULL));
  EXPECT(strstr(text, "lacks") != NULL);
  RESULT(gw_exchange_add(exchange, units, 2, NULL, 0, long_text, sizeof long_text, gradient, N, 0, NULL),
         GW_EXCHANGE_BAD_PART);
  RESULT(gw_exchange_add(exchange, NULL, 2, NULL, 0, NULL, 0, gradient, N, 0, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_add(exchange, units, 2, NULL, 1, NULL, 0, gradient, N, 0, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_add(exchange, units, 2, NULL, 0, NULL, 1, gradient, N, 0, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_add(exchange, units, 2, NULL, 0, NULL, 0, NULL, N, 0, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_add(exchange, units, 2, NULL, 0, NULL, 0, gradient, N - 1, 0, NULL), GW_ERROR_WRONG_LENGTH);
  RESULT(gw_exchange_add(NULL, units, 2, NULL, 0, NULL, 0, gradient, N, 0, NULL), GW_ERROR_NULL_POINTER);
  OK(gw_memory_residual(ranks[0].memory, &residual, NULL));
  RESULT(gw_exchange_add(exchange, units, 2, NULL, 0, NULL, 0, residual, N, 0, NULL), GW_ERROR_OVERLAP);
  OK(gw_exchange_add(exchange, units, 2, NULL, 0, NULL, 0, gradient, N, 0, NULL));
  RESULT(gw_exchange_add(exchange, units, 2, NULL, 0, NULL, 0, gradient, N, 0, NULL), GW_EXCHANGE_BAD_PART);
  RESULT(gw_exchange_advance(exchange, mean, N + 1, 0, &progress), GW_ERROR_WRONG_LENGTH);
  RESULT(gw_exchange_advance(exchange, mean, N, 0, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_advance(NULL, mean, N, 0, &progress), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_fail(exchange, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_fail(exchange, "\xff"), GW_ERROR_NOT_UTF8);
  RESULT(gw_exchange_said(exchange, 0, 0, NULL, &count), GW_ERROR_OUT_OF_RANGE);
  do {
    OK(gw_exchange_advance(exchange, mean, N, 0, &progress));
  } while (progress != GW_DONE);
  RESULT(gw_exchange_said(exchange, 0, 0, NULL, &count), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_said(exchange, 0, 0, &said, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_said(exchange, SIZE_MAX, 0, &said, &count), GW_ERROR_OUT_OF_RANGE);
  OK(gw_exchange_said(exchange, 0, 0, &said, &count));
  EXPECT(count == 0);
  OK(gw_exchange_add(exchange, &third, 1, NULL, 0, NULL, 0, gradient, N, 0, NULL));
  do {
    OK(gw_exchange_complete(exchange, mean, N, 0, 9, &progress));
  } while (progress != GW_DONE);
  RESULT(gw_exchange_units(NULL, &count), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_unit(NULL, 0, &start, &count), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_part(NULL, 0, &state), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_part(exchange, 0, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_exchange_said(NULL, 0, 0, &said, &count), GW_ERROR_NULL_POINTER);
  unmake();
}

int main(void) {
  const size_t one[UNITS] = {1, 1, 1}, thirds[UNITS] = {UNIT, UNIT, UNIT};
  OK(gw_layout_new(UNITS, NULL, one, thirds, UNITS, &layout));
  bits_are_those_of_a_step_in_one("topk:density=0.1,unit=tensor", GW_ROUTE_ALL_GATHER);
  bits_are_those_of_a_step_in_one("dgc:density=0.1,unit=tensor", GW_ROUTE_ALL_GATHER);
  bits_are_those_of_a_step_in_one("randomk:density=0.1,unit=tensor", GW_ROUTE_OWNERS);
  a_part_is_there_before_the_next(GW_ROUTE_ALL_GATHER, "qsgd:bits=4,unit=tensor");
  a_part_is_there_before_the_next(GW_ROUTE_OWNERS, "maxnorm:bits=4,unit=tensor");
  a_unit_that_a_rank_lacks();
  a_rank_that_fails_tells_all_others(GW_ROUTE_ALL_GATHER, "topk:density=0.1,unit=tensor");
  a_rank_that_fails_tells_all_others(GW_ROUTE_OWNERS, "maxnorm:bits=4,unit=tensor");
  a_gradient_that_is_refused();
  wrong_calls();
  gw_layout_free(layout);
  return 0;
}
